# The search on the digit scenes themselves, from the dense detector down to 70 % of the backbone's
# MACs, then 4 epochs of the subnet.
# python tools/train.py configs/kcr/detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py
# python tools/train.py configs/ofb/detection/ofb-mask-rcnn_swin-mini_search_1xb8_digit-scenes.py
# RUN=work_dirs/ofb-mask-rcnn_swin-mini_search_1xb8_digit-scenes
# python tools/slim.py configs/ofb/detection/ofb-mask-rcnn_swin-mini_search_1xb8_digit-scenes.py \
#     $RUN/epoch_2.pth
# python tools/train.py configs/kcr/detection/kcr-mask-rcnn_swin-mini_slim_1xb8_digit-scenes.py \
#     --work-dir work_dirs/ofb-mask-rcnn_swin-mini_slim_1xb8_digit-scenes --cfg-options \
#     model.backbone.type=mmkcr.OFBSwinTransformer load_from=$RUN/slim/subnet.pth \
#     model.backbone.structure=$RUN/slim/structure.json
_base_ = [
    '../../kcr/detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py',
    '../../_base_/methods/ofb_search.py',
]

model = dict(backbone=dict(type='mmkcr.OFBSwinTransformer', init_cfg=None))
compression = dict(
    sites='own',
    target=0.7,
    # 50 steps of the weights' rate would leave every alpha where it starts
    architecture=dict(lr=1e-1))
param_scheduler = [dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=25)]
train_cfg = dict(max_epochs=2)
load_from = 'work_dirs/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes/epoch_6.pth'
expected = dict(_delete_=True)

# OFB on the detector itself: Swin-T in Mask R-CNN, from ImageNet's weights, on COCO. Masked patches
# are reconstructed.
# bash tools/dist_train.sh configs/ofb/detection/ofb-mask-rcnn_swin-tiny_search_8xb2_coco.py 8
# RUN=work_dirs/ofb-mask-rcnn_swin-tiny_search_8xb2_coco
# python tools/slim.py configs/ofb/detection/ofb-mask-rcnn_swin-tiny_search_8xb2_coco.py \
#     $RUN/epoch_12.pth
# bash tools/dist_train.sh configs/ofb/detection/ofb-mask-rcnn_swin-tiny_2600m_8xb2_coco.py 8 \
#     --work-dir work_dirs/ofb-mask-rcnn_swin-tiny_slim_8xb2_coco --cfg-options \
#     model.backbone.structure=$RUN/slim/structure.json model.backbone.init_cfg=None \
#     load_from=$RUN/slim/subnet.pth
# Not run. The paper has no such row.
_base_ = [
    '../../kcr/detection/kcr-mask-rcnn_swin-tiny_dense_8xb2_coco.py',
    '../../_base_/methods/ofb_search.py',
]

model = dict(backbone=dict(type='mmkcr.OFBSwinTransformer'))
compression = dict(
    sites='own',
    # 2.6 of 4.5 G at 224 px
    target=0.578,
    wrapper=dict(
        _delete_=True,
        type='mmkcr.MaskedSearchModel',
        reconstruction=dict(in_channels=768, token_channels=96, patch_size=32, window=47)))
custom_hooks = [
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.2),
    dict(type='mmkcr.LinearScheduleHook', attribute='mask_ratio', start=0.01, end=0.25),
]

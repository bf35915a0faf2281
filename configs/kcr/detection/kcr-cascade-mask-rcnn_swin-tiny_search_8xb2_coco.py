# The search for a KCR-Swin-T on COCO itself, then the slimming to 80 % of its MACs.
# bash tools/dist_train.sh \
#     configs/kcr/detection/kcr-cascade-mask-rcnn_swin-tiny_search_8xb2_coco.py 8
# python tools/slim.py configs/kcr/detection/kcr-cascade-mask-rcnn_swin-tiny_search_8xb2_coco.py \
#     work_dirs/kcr-cascade-mask-rcnn_swin-tiny_search_8xb2_coco/epoch_12.pth --target-macs 0.8
# Not run. The paper has no such row.
_base_ = [
    '../../_base_/models/kcr_cascade-mask-rcnn_swin-tiny_regularized.py',
    '../../_base_/datasets/coco-instance_ms-crop_bs16.py',
    '../../_base_/schedules/kcr_coco-search_bs16_12e.py',
    '../../_base_/detection_runtime.py',
]

checkpoint = 'https://mmassets.onedl.ai/mmclassification/v0/swin-transformer/swin_tiny_224_b16x64_300e_imagenet_20210616_090925-66df6be6.pth'
model = dict(
    type='mmkcr.SearchModel',
    architecture=dict(
        backbone=dict(
            gates=dict(type='mmkcr.GumbelChannelGate'),
            init_cfg=dict(type='Pretrained', checkpoint=checkpoint))),
    # an image of 800 x 1280: the heads run on as many proposals as the weights give
    price=dict(
        type='mmkcr.MacsPrice', weight=0.2, cost='macs', part='backbone',
        input_shape=(3, 800, 1280)))
del checkpoint

# Cascade Mask R-CNN with the dense Swin-T on COCO (3x, multi-scale): the baseline.
# bash tools/dist_train.sh \
#     configs/kcr/detection/kcr-cascade-mask-rcnn_swin-tiny_dense_8xb2_coco.py 8
# Not run. Reported: 50.5 box AP, 43.7 mask AP.
_base_ = [
    '../../_base_/models/kcr_cascade-mask-rcnn_swin-tiny.py',
    '../../_base_/datasets/coco-instance_ms-crop_bs16.py',
    '../../_base_/schedules/coco_bs16_adamw_1x.py',
    '../../_base_/detection_runtime.py',
]

checkpoint = 'https://mmassets.onedl.ai/mmclassification/v0/swin-transformer/swin_tiny_224_b16x64_300e_imagenet_20210616_090925-66df6be6.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
del checkpoint
# 3x: 36 epochs, the rate falls after the 27th and the 33rd
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(type='MultiStepLR', begin=0, end=36, by_epoch=True, milestones=[27, 33], gamma=0.1)
]
train_cfg = dict(max_epochs=36)

# Cascade Mask R-CNN with the dense Swin-B on COCO (3x, multi-scale): the baseline.
# bash tools/dist_train.sh \
#     configs/kcr/detection/kcr-cascade-mask-rcnn_swin-base_dense_8xb2_coco.py 8
# Not run. Reported: 51.9 box AP, 45.0 mask AP.
_base_ = [
    '../../_base_/models/kcr_cascade-mask-rcnn_swin-tiny.py',
    '../../_base_/datasets/coco-instance_ms-crop_bs16.py',
    '../../_base_/schedules/coco_bs16_adamw_3x.py',
    '../../_base_/detection_runtime.py',
]

checkpoint = 'https://mmassets.onedl.ai/mmclassification/v0/swin-transformer/swin_base_224_b16x64_300e_imagenet_20210616_190742-93230b0d.pth'
model = dict(
    backbone=dict(
        arch='base',
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    neck=dict(in_channels=[128, 256, 512, 1024]))
del checkpoint

# Cascade Mask R-CNN with the dense Swin-B on COCO (3x, multi-scale): the baseline.
# bash tools/dist_train.sh \
#     configs/kcr/detection/kcr-cascade-mask-rcnn_swin-base_dense_8xb2_coco.py 8
# Not run. Reported: 51.9 box AP, 45.0 mask AP.
_base_ = './kcr-cascade-mask-rcnn_swin-tiny_dense_8xb2_coco.py'

checkpoint = 'https://mmassets.onedl.ai/mmclassification/v0/swin-transformer/swin_base_224_b16x64_300e_imagenet_20210616_190742-93230b0d.pth'
model = dict(
    backbone=dict(arch='base', drop_path_rate=0.3, init_cfg=dict(checkpoint=checkpoint)),
    neck=dict(in_channels=[128, 256, 512, 1024]))
del checkpoint

# Cascade Mask R-CNN with KCR-Swin-B.
_base_ = './kcr_cascade-mask-rcnn_swin-tiny.py'

model = dict(
    backbone=dict(arch='base', drop_path_rate=0.3), neck=dict(in_channels=[128, 256, 512, 1024]))

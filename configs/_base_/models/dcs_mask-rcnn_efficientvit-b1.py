# Mask R-CNN FPN with EfficientViT-B1.
_base_ = 'mmdet::_base_/models/mask-rcnn_r50_fpn.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmkcr.DCSEfficientViT',
        arch='b1',
        local=True,
        out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[32, 64, 128, 256]))

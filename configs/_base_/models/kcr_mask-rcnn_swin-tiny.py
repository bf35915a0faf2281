# Mask R-CNN with KCR-Swin-T: stochastic depth as in Liu et al. (2021a).
_base_ = 'mmdet::_base_/models/mask-rcnn_r50_fpn.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmkcr.KCRSwinTransformer',
        arch='tiny',
        drop_path_rate=0.2,
        out_indices=(0, 1, 2, 3),
        pad_small_map=True),
    neck=dict(in_channels=[96, 192, 384, 768]))

# Cascade Mask R-CNN with KCR-Swin-T: box heads of four convolutions with the GIoU loss and
# stochastic depth as in Liu et al. (2021a), whose setting KCR v2 (D.4) follows.
_base_ = 'mmdet::_base_/models/cascade-mask-rcnn_r50_fpn.py'

box_heads = [
    dict(
        type='ConvFCBBoxHead',
        num_shared_convs=4,
        num_shared_fcs=1,
        in_channels=256,
        conv_out_channels=256,
        fc_out_channels=1024,
        roi_feat_size=7,
        num_classes=80,
        bbox_coder=dict(
            type='DeltaXYWHBBoxCoder', target_means=[0.] * 4, target_stds=[xy, xy, wh, wh]),
        reg_class_agnostic=False,
        reg_decoded_bbox=True,
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        loss_cls=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.),
        loss_bbox=dict(type='GIoULoss', loss_weight=10.))
    for xy, wh in ((0.1, 0.2), (0.05, 0.1), (0.033, 0.067))
]
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmkcr.KCRSwinTransformer',
        arch='tiny',
        drop_path_rate=0.2,
        out_indices=(0, 1, 2, 3),
        pad_small_map=True),
    neck=dict(in_channels=[96, 192, 384, 768]),
    roi_head=dict(bbox_head=box_heads))
del box_heads

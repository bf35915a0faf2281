# Mask R-CNN FPN 1x with the dense EfficientViT-B1 on COCO.
# python tools/model_converters/efficientvit_timm.py TIMM_CHECKPOINT work_dirs/efficientvit_b1.pth
# bash tools/dist_train.sh configs/dcs/detection/dcs-mask-rcnn_efficientvit-b1_dense_8xb2_coco.py 8
# Not run. Reported: 33.5 box AP, 31.9 mask AP.
_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    'mmdet::_base_/datasets/coco_instance.py',
    '../../_base_/schedules/coco_bs16_adamw_1x.py',
    '../../_base_/detection_runtime.py',
]

checkpoint = 'work_dirs/efficientvit_b1.pth'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmkcr.DCSEfficientViT',
        arch='b1',
        local=True,
        out_indices=(0, 1, 2, 3),
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    neck=dict(in_channels=[32, 64, 128, 256]))
del checkpoint
# The paper (appendix E) gives the rate and its cosine; decay and warm-up are the schedule's.
# lr is 1e-3 for 8 x 2 = 16 images; with --auto-scale-lr: 1e-3 x images / 16.
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(type='CosineAnnealingLR', T_max=12, eta_min=0, by_epoch=True, end=12,
         convert_to_iter_based=True)
]

# Mask R-CNN with the dense Swin-T on COCO, 1x: the cheap variant, from mmpretrain's weights.
# bash tools/dist_train.sh configs/kcr/detection/kcr-mask-rcnn_swin-tiny_dense_8xb2_coco.py 8
# Not run. The paper has no such row; mmdet reports 42.7 box AP, 39.3 mask AP.
_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    'mmdet::_base_/datasets/coco_instance.py',
    '../../_base_/schedules/coco_bs16_adamw_1x.py',
    '../../_base_/detection_runtime.py',
]

checkpoint = 'https://mmassets.onedl.ai/mmclassification/v0/swin-transformer/swin_tiny_224_b16x64_300e_imagenet_20210616_090925-66df6be6.pth'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmkcr.KCRSwinTransformer',
        arch='tiny',
        drop_path_rate=0.2,  # as in Liu et al. (2021a)
        out_indices=(0, 1, 2, 3),
        pad_small_map=True,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    neck=dict(in_channels=[96, 192, 384, 768]))
del checkpoint

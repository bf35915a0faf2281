# Mask R-CNN FPN 1x with the dense EfficientViT-B1 on COCO.
# python tools/model_converters/efficientvit_timm.py TIMM_CHECKPOINT work_dirs/efficientvit_b1.pth
# bash tools/dist_train.sh configs/dcs/detection/dcs-mask-rcnn_efficientvit-b1_dense_8xb2_coco.py 8
# Not run. Reported: 33.5 box AP, 31.9 mask AP.
_base_ = [
    '../../_base_/models/dcs_mask-rcnn_efficientvit-b1.py',
    'mmdet::_base_/datasets/coco_instance.py',
    '../../_base_/schedules/dcs_coco_bs16_adamw_1x.py',
    '../../_base_/detection_runtime.py',
]

checkpoint = 'work_dirs/efficientvit_b1.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
del checkpoint

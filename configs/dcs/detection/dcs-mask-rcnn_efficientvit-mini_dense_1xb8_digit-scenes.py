# Mask R-CNN with the dense EfficientViT on the digit scenes, from the classifier's backbone.
# python tools/train.py configs/dcs/digits/dcs-dense_efficientvit-mini_1xb64_digits.py
# python tools/train.py \
#     configs/dcs/detection/dcs-mask-rcnn_efficientvit-mini_dense_1xb8_digit-scenes.py
_base_ = [
    '../../_base_/models/kcr_mask-rcnn_swin-mini.py',
    '../../_base_/datasets/digit_scenes_instance.py',
    '../../_base_/schedules/digit-scenes_bs8_12e.py',
    '../../_base_/detection_runtime.py',
]

checkpoint = 'work_dirs/dcs-dense_efficientvit-mini_1xb64_digits/epoch_48.pth'
# the EfficientViT of the digits (dcs-efficientvit-mini_digits.py): maps of strides 4 and 8
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmkcr.DCSEfficientViT',
        arch=dict(widths=[16, 32, 64], depths=[1, 2, 2], head_dim=16),
        img_size=128,
        local=True,
        out_indices=(0, 1),
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    neck=dict(in_channels=[32, 64]))
del checkpoint

# Mean of several seeds and tolerance (../README.md); digits found by chance give 0.
expected = {'coco/bbox_mAP': (0.76, 0.06), 'coco/segm_mAP': (0.61, 0.06)}

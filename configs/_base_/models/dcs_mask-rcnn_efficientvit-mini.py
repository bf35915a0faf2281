# Mask R-CNN with the EfficientViT of the digits (dcs-efficientvit-mini_digits.py), narrow heads and
# few proposals, for the digit scenes. Its maps have strides 4 and 8, as those of the Swin.
_base_ = './kcr_mask-rcnn_swin-mini.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmkcr.DCSEfficientViT',
        arch=dict(widths=[16, 32, 64], depths=[1, 2, 2], head_dim=16),
        img_size=128,
        local=True,
        out_indices=(0, 1)),
    neck=dict(in_channels=[32, 64]))

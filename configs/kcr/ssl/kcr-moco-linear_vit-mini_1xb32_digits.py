# A linear classifier on the frozen, pre-trained subnet, with the labels of 103 digits.
# python tools/train.py configs/kcr/ssl/kcr-moco-linear_vit-mini_1xb32_digits.py
_base_ = './kcr-moco-finetune_vit-mini_1xb32_digits.py'

model = dict(backbone=dict(frozen_stages=4, norm_eval=True))
# mmpretrain's recipe: 12 for 1024 images
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.375, momentum=0.9, weight_decay=0.))
param_scheduler = [dict(type='CosineAnnealingLR', T_max=48, by_epoch=True, end=48)]

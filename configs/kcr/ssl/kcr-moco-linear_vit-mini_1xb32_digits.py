# A linear classifier on the frozen, pre-trained subnet, with the labels of 103 digits.
# python tools/train.py configs/kcr/ssl/kcr-moco-linear_vit-mini_1xb32_digits.py
_base_ = './kcr-moco-finetune_vit-mini_1xb32_digits.py'

model = dict(backbone=dict(frozen_stages=4, norm_eval=True))
# of the 12 for 1024 images that mmpretrain takes, scaled to 32, a quarter: 192 steps are few
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=0.))
param_scheduler = [dict(type='CosineAnnealingLR', T_max=48, by_epoch=True, end=48)]

# The dense network that everything is cut from which is not searched from scratch.
_base_ = './dense_timm-vit-nano.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=38, eta_min=1e-5, by_epoch=True, begin=2, end=40,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=40)

# Retraining of what Once for Both left; also its dense network, on units of its own.
_base_ = './dense_vit-nano.py'

model = dict(backbone=dict(type='mmkcr.OFBVisionTransformer'))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=14, eta_min=1e-5, by_epoch=True, begin=2, end=16,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=16)

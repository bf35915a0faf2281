# Retraining of what Once for Both left; also its dense network, on units of its own.
_base_ = './dense_upernet-mini.py'

model = dict(backbone=dict(type='mmkcr.OFBSwinTransformer'))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=10),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=10, end=100)
]
train_cfg = dict(max_iters=100)

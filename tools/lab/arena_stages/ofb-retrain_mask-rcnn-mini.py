# Retraining of what Once for Both left; also its dense network, on units of its own.
_base_ = './dense_mask-rcnn-mini.py'

model = dict(backbone=dict(type='mmkcr.OFBSwinTransformer'))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=10),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=10, end=70, T_max=60)
]
train_cfg = dict(max_iters=70)

# Training of a subnet from inherited weights: half of the iterations of the dense model.
_base_ = './ofb_digit-scenes_bs8_300i.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=15),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=15, end=150)
]
train_cfg = dict(max_iters=150, val_interval=150)
default_hooks = dict(checkpoint=dict(interval=150))

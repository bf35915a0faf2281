# The dense network that everything is cut from.
_base_ = './dense_upernet-mini.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=50, end=250)
]
train_cfg = dict(max_iters=250)

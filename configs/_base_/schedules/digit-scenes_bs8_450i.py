# Half of the iterations of digit-scenes_bs8_900i.py.
_base_ = './digit-scenes_bs8_900i.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=50, end=450)
]
train_cfg = dict(max_iters=450, val_interval=150)
default_hooks = dict(checkpoint=dict(interval=150))

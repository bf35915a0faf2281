# A third of the iterations of ofb_digit-scenes_bs8_900i.py.
_base_ = './ofb_digit-scenes_bs8_900i.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=30),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=30, end=300)
]
train_cfg = dict(max_iters=300)

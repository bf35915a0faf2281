# Two thirds of the iterations of the dense segmentor, for the search and for its subnet.
_base_ = './ofb_digit-scenes_bs8_900i.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=50, end=600)
]
train_cfg = dict(max_iters=600)

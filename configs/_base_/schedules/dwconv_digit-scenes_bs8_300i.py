# The second fine-tuning, after the replacement: half of the iterations of the first.
_base_ = './dwconv_digit-scenes_bs8_600i.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=25),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=25, end=300)
]
train_cfg = dict(max_iters=300, val_interval=300)

# Half of digit-scenes_bs8_12e.py.
_base_ = './digit-scenes_bs8_12e.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=25),
    dict(type='CosineAnnealingLR', T_max=6, eta_min=1e-5, by_epoch=True, begin=0, end=6,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=6, val_interval=2)

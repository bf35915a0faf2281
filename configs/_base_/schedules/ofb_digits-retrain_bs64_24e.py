# Retraining on the digits from inherited weights, on one CPU.
_base_ = './digits_bs64_48e.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=22, eta_min=1e-5, by_epoch=True, begin=2, end=24,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=24)

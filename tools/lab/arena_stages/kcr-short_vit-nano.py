# Retraining of what the KCR search from the dense network left.
_base_ = './kcr-retrain_vit-nano.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=16, eta_min=1e-5, by_epoch=True, begin=2, end=18,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=18)

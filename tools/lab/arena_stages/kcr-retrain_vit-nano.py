# Retraining of what the KCR search left.
_base_ = ['./dense_vit-nano.py', '../../../configs/_base_/methods/kcr_retrain.py']

compression = dict(sites=['mlp_hidden', 'heads'])
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=42, eta_min=1e-5, by_epoch=True, begin=2, end=44,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=44)

# Retraining of what the DCS search from the dense network left, without the IB loss.
_base_ = ['./dense_vit-nano.py', '../../../configs/_base_/methods/dcs_retrain.py']

compression = dict(sites=['qk_mask', 'mlp_hidden'])
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=16, eta_min=1e-5, by_epoch=True, begin=2, end=18,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=18)

# The DCS search from the dense network: ten epochs, with the rates of KCR's.
_base_ = './dcs-search_vit-nano.py'

optim_wrapper = dict(optimizer=dict(lr=1e-3))
compression = dict(architecture=dict(lr=5e-2))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=8, eta_min=1e-5, by_epoch=True, begin=2, end=10,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=10)

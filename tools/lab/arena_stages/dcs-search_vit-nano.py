# The DCS search from scratch: that of KCR without its term, with masks on queries and keys.
_base_ = ['./dense_vit-nano.py', '../../../configs/_base_/methods/dcs_search.py']

compression = dict(
    sites=['qk_mask', 'mlp_hidden'],
    gates=dict(init=0.5),
    target='50%',
    price=dict(weight=0.3),
    architecture=dict(lr=2e-2),
    hooks=[dict(type='mmkcr.TemperatureDecayHook', initial=4.5, minimum=0.13, until='100%')])
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=18, eta_min=1e-5, by_epoch=True, begin=2, end=20,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=20)

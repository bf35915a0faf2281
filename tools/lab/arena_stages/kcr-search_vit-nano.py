# The KCR search from scratch, on the units that the controls choose among: 20 epochs of seven
# batches for the weights and seven for the gates. Rates of the gates as in the digit configs.
_base_ = ['./dense_vit-nano.py', '../../../configs/_base_/methods/kcr_search.py']

compression = dict(
    sites=['mlp_hidden', 'heads'],
    gates=dict(init=0.5),
    target='50%',
    price=dict(weight=0.3),
    architecture=dict(lr=2e-2),
    hooks=[
        dict(type='mmkcr.TemperatureDecayHook', initial=4.5, minimum=0.13, until='100%'),
        dict(type='mmkcr.WarmupSwitchHook', begin='45%'),
        dict(type='mmkcr.NystromRefreshHook', interval='15%'),
    ])
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=18, eta_min=1e-5, by_epoch=True, begin=2, end=20,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=20)

# What the KCR searches from the dense networks of the digit scenes share.
_base_ = '../../../configs/_base_/methods/kcr_search.py'

compression = dict(
    sites=['mlp_hidden', 'heads'],
    gates=dict(init=0.5),
    target='50%',
    part='backbone',
    price=dict(weight=0.3),
    regularizers=dict(kcr=dict(num_features=96)),
    architecture=dict(lr=5e-2),
    hooks=[
        dict(type='mmkcr.TemperatureDecayHook', initial=4.5, minimum=0.13, until='100%'),
        dict(type='mmkcr.WarmupSwitchHook', begin='45%'),
        dict(type='mmkcr.NystromRefreshHook', interval='15%'),
    ])

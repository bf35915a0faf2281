# What the DCS searches from the dense networks of the digit scenes share.
_base_ = '../../../configs/_base_/methods/dcs_search.py'

compression = dict(
    sites=['qk_mask', 'mlp_hidden'],
    gates=dict(init=0.5),
    target='50%',
    part='backbone',
    price=dict(weight=0.3),
    architecture=dict(lr=5e-2),
    hooks=[dict(type='mmkcr.TemperatureDecayHook', initial=4.5, minimum=0.13, until='100%')])

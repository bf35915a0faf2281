# The DCS search from the dense network: 35 batches for the weights and 35 for the gates.
_base_ = ['./dense_mask-rcnn-mini.py', '../../../configs/_base_/methods/dcs_search.py']

optim_wrapper = dict(optimizer=dict(lr=1e-3))
compression = dict(
    sites=['qk_mask', 'mlp_hidden'],
    gates=dict(init=0.5),
    target='50%',
    part='backbone',
    price=dict(weight=0.3),
    architecture=dict(lr=5e-2),
    hooks=[dict(type='mmkcr.TemperatureDecayHook', initial=4.5, minimum=0.13, until='100%')])
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=5),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=5, end=35)
]
train_cfg = dict(max_iters=35)

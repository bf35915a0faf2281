# The DCS search from the dense network: 45 batches for the weights and 45 for the gates.
_base_ = ['./dense_upernet-mini.py', './scenes_dcs-search.py']

optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=5),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=5, end=45)
]
train_cfg = dict(max_iters=45)

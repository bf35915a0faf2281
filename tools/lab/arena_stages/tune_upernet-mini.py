# Fine-tuning of what was cut from the dense network of start_upernet-mini.py.
_base_ = './dense_upernet-mini.py'

runner_type = 'mmkcr.CompressionRunner'
compression = dict(sites=['mlp_hidden', 'heads'])
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=10),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=10, end=200)
]
train_cfg = dict(max_iters=200)

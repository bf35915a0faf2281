# Fine-tuning of what was cut from the dense network of start_mask-rcnn-mini.py.
_base_ = './dense_mask-rcnn-mini.py'

runner_type = 'mmkcr.CompressionRunner'
compression = dict(sites=['mlp_hidden', 'heads'])
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=10),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=10, end=140, T_max=130)
]
train_cfg = dict(max_iters=140)

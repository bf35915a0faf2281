# The dense network that everything is cut from.
_base_ = './dense_mask-rcnn-mini.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=25),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=25, end=160, T_max=135)
]
train_cfg = dict(max_iters=160)

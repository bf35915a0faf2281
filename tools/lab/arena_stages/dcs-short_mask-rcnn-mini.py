# Retraining of what the DCS search from the dense network left. The information bottleneck needs
# labels of images, so it is left out.
_base_ = ['./dense_mask-rcnn-mini.py', '../../../configs/_base_/methods/dcs_retrain.py']

compression = dict(sites=['qk_mask', 'mlp_hidden'])
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=10),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=10, end=70, T_max=60)
]
train_cfg = dict(max_iters=70)

# Retraining of what the KCR search from the dense network left.
_base_ = ['./dense_mask-rcnn-mini.py', '../../../configs/_base_/methods/kcr_retrain.py']

compression = dict(
    sites=['mlp_hidden', 'heads'], regularizers=dict(kcr=dict(num_features=96)))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=10),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=10, end=70, T_max=60)
]
train_cfg = dict(max_iters=70)

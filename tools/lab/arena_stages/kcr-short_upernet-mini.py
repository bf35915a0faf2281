# Retraining of what the KCR search from the dense network left.
_base_ = ['./dense_upernet-mini.py', '../../../configs/_base_/methods/kcr_retrain.py']

compression = dict(
    sites=['mlp_hidden', 'heads'], regularizers=dict(kcr=dict(num_features=96)))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=10),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=10, end=110)
]
train_cfg = dict(max_iters=110)

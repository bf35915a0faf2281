# Retraining of what the DCS search left, with the IB loss (eta 5 as in the digit configs).
_base_ = ['./dense_vit-nano.py', '../../../configs/_base_/methods/dcs_retrain.py']

compression = dict(
    sites=['qk_mask', 'mlp_hidden'],
    feature_layer='head.fc:input',
    regularizers=dict(
        ib=dict(
            type='mmkcr.InformationBottleneckLoss', num_features=64, num_classes=10, weight=5.)),
    hooks=[
        dict(type='mmkcr.GateNoiseHook'),
        dict(type='mmkcr.WarmupSwitchHook', begin='30%', losses='ib'),
        dict(type='mmkcr.InformationBottleneckHook'),
    ])
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=42, eta_min=1e-5, by_epoch=True, begin=2, end=44,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=44)

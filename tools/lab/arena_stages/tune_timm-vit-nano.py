# Fine-tuning of what was cut from the dense network of start_timm-vit-nano.py.
_base_ = './dense_timm-vit-nano.py'

custom_imports = dict(imports=['mmkcr'], allow_failed_imports=False)
runner_type = 'mmkcr.CompressionRunner'
compression = dict(sites=['mlp_hidden', 'heads'])
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=30, eta_min=1e-5, by_epoch=True, begin=2, end=32,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=32)

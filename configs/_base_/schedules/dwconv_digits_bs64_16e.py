# Fine-tuning on the digits, on one CPU: lr is 1e-3 for 64 images.
_base_ = './digits_bs64_48e.py'

optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=15, eta_min=1e-5, by_epoch=True, begin=1,
         end=16, convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=16)

# Retraining on the digits from inherited weights, on one CPU: lr is 2e-3 for 64 images.
# Search and retraining together see the digits as often as the dense model in its 48 epochs.
# t_warm 90 of 300 epochs becomes 10 of 32, a refresh per 30 of 300 per 3 of 32.
_base_ = './digits_bs64_48e.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=30, eta_min=1e-5, by_epoch=True, begin=2,
         end=32, convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=32)

custom_hooks = [
    dict(type='mmkcr.WarmupSwitchHook', begin=10),
    dict(type='mmkcr.NystromRefreshHook', interval=3),
]

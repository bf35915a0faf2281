# Retraining of DCS on the digits from inherited weights, on one CPU: lr is 2e-3 for 64 images.
# Search and retraining together see the digits as often as the dense model in its 48 epochs.
# t_warm 90 of 300 epochs becomes 10 of 32.
_base_ = './kcr_digits-retrain_bs64_32e.py'

custom_hooks = [
    dict(type='mmkcr.GateNoiseHook'),
    dict(type='mmkcr.WarmupSwitchHook', begin=10, losses='ib'),
    dict(type='mmkcr.InformationBottleneckHook'),
]

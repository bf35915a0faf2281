# Retraining of DCS on the digits with the IB loss: t_warm 90 of 300 epochs becomes 10 of 32.
_base_ = './dcs_digits-retrain_bs64_32e.py'

custom_hooks = [
    dict(type='mmkcr.GateNoiseHook'),
    dict(type='mmkcr.WarmupSwitchHook', begin=10, losses='ib'),
    dict(type='mmkcr.InformationBottleneckHook'),
]

# The retraining of KCR-Transformer v2: cross entropy, and the KCR term after t_warm = 90 epochs.
_base_ = './imagenet_bs512_adamw_300e.py'

custom_hooks = [
    # The paper gives no decay of the average: 1 - 4e-5, the host's for DeiT.
    dict(type='EMAHook', momentum=4e-5, priority='ABOVE_NORMAL'),
    dict(type='mmkcr.WarmupSwitchHook', begin=90),
    dict(type='mmkcr.NystromRefreshHook', interval=30, landmarks=50000),
]

# The retraining of DCS (appendix B): cross entropy alone, that of the ablations.
_base_ = './imagenet_bs512_adamw_300e.py'

custom_hooks = [
    # The paper gives no decay of the average: 1 - 4e-5, the host's for DeiT.
    dict(type='EMAHook', momentum=4e-5, priority='ABOVE_NORMAL'),
    dict(type='mmkcr.GateNoiseHook'),
]

# The retraining of DCS (algorithm 1, appendix B): cross entropy, and the IB loss after t_warm = 90
# epochs.
_base_ = './kcr_retrain_bs512_300e.py'

custom_hooks = [
    # The paper gives no decay of the average: 1 - 4e-5, the host's for DeiT.
    dict(type='EMAHook', momentum=4e-5, priority='ABOVE_NORMAL'),
    dict(type='mmkcr.GateNoiseHook'),
    dict(type='mmkcr.WarmupSwitchHook', begin=90, losses='ib'),
    dict(type='mmkcr.InformationBottleneckHook'),
]

# The retraining of DCS (algorithm 1, appendix B). The hooks of masks and of the IB loss stand with
# these in `compression`, so without it the rest is the recipe of the dense network.
_base_ = './kcr_retrain_bs512_300e.py'

custom_hooks = [
    # The paper gives no decay of the average: 1 - 4e-5, the host's for DeiT.
    dict(type='EMAHook', momentum=4e-5, priority='ABOVE_NORMAL'),
]

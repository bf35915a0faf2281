# Retrains the subnet on the digits from the inherited weights, without the IB loss.
# python tools/train.py configs/dcs/digits/dcs-retrain_efficientvit-mini_no-ib_1xb64_digits.py
_base_ = './dcs-retrain_efficientvit-mini_1xb64_digits.py'

compression = dict(
    feature_layer=None,
    regularizers=None)
custom_hooks = [dict(type='mmkcr.GateNoiseHook')]

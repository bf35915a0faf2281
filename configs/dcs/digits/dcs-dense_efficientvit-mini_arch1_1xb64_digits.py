# DCS-Arch1: masked queries and keys, nothing to search, trained as long as search and retraining.
# python tools/train.py configs/dcs/digits/dcs-dense_efficientvit-mini_arch1_1xb64_digits.py
_base_ = './dcs-dense_efficientvit-mini_1xb64_digits.py'

model = dict(backbone=dict(outputs=False))
custom_hooks = [dict(type='mmkcr.GateNoiseHook')]

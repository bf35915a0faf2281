# DCS-Arch1: masked queries and keys, nothing to search, trained as long as search and retraining.
# python tools/train.py configs/dcs/digits/dcs-dense_efficientvit-mini_arch1_1xb64_digits.py
_base_ = [
    '../../_base_/models/dcs-efficientvit-mini_digits.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/digits_bs64_48e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/dcs_retrain.py',
]

model = dict(backbone=dict(outputs=False))
compression = dict(
    # logs what the masks leave open
    sites='own', regularizers=dict(mask=dict(type='mmkcr.MaskPrice', weight=0.)))
custom_hooks = [dict(type='mmkcr.GateNoiseHook')]

# DCS-Arch1: masked queries and keys, nothing to search, trained as long as search and retraining.
# python tools/train.py configs/dcs/digits/dcs-dense_mobilevit-mini_arch1_1xb64_digits.py
_base_ = [
    '../../_base_/models/dcs-mobilevit-mini_digits.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/digits_bs64_48e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/dcs_retrain.py',
]

model = dict(backbone=dict(outputs=False))
compression = dict(sites='own')
custom_hooks = [dict(type='mmkcr.GateNoiseHook')]

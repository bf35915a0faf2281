# The dense model on the digits.
# python tools/train.py configs/ofb/digits/ofb-dense_vit-mini_1xb64_digits.py
_base_ = [
    '../../_base_/models/kcr_vit-mini.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/digits_bs64_48e.py',
    '../../_base_/default_runtime.py',
]

model = dict(backbone=dict(type='mmkcr.OFBVisionTransformer'))

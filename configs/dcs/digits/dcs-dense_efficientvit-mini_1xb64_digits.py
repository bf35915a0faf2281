# The dense EfficientViT on the digits.
# python tools/train.py configs/dcs/digits/dcs-dense_efficientvit-mini_1xb64_digits.py
_base_ = [
    '../../_base_/models/dcs-efficientvit-mini_digits.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/digits_bs64_48e.py',
    '../../_base_/default_runtime.py',
]

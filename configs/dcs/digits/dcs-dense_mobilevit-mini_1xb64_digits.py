# The dense MobileViT on the digits.
# python tools/train.py configs/dcs/digits/dcs-dense_mobilevit-mini_1xb64_digits.py
_base_ = [
    '../../_base_/models/dcs-mobilevit-mini_digits.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/digits_bs64_48e.py',
    '../../_base_/default_runtime.py',
]

# The dense model on the digits.
# python tools/train.py configs/kcr/digits/kcr-dense_swin-mini_1xb64_digits.py
_base_ = [
    '../../_base_/models/kcr_swin-mini.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/digits_bs64_48e.py',
    '../../_base_/default_runtime.py',
]

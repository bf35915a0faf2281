# MoCo v3 of the dense model on the digits, without labels.
# python tools/train.py configs/kcr/ssl/kcr-moco-dense_vit-mini_1xb128_digits.py
_base_ = [
    '../../_base_/models/mocov3_vit-mini.py',
    '../../_base_/datasets/digits_bs128_views.py',
    '../../_base_/schedules/mocov3_digits_bs128_100e.py',
    '../../_base_/default_runtime.py',
]

# the same network as that of the others, without gates or a structure
runner_type = 'mmkcr.CompressionRunner'
compression = dict(sites=['mlp_channels'])

# The dense model on questions about digit scenes.
# python tools/train.py configs/kcr/vqa/kcr-vqa-dense_flava-mini_1xb64_digits.py
_base_ = [
    '../../_base_/models/flava-mini_vqa.py',
    '../../_base_/datasets/vqa-digits_bs64.py',
    '../../_base_/schedules/vqa-digits_bs64_12e.py',
    '../../_base_/default_runtime.py',
]

# the same network as that of the others, without gates or a structure
runner_type = 'mmkcr.CompressionRunner'
compression = dict(sites=['mlp_channels'])
model = dict(answers={{_base_.answers}})

# The classifier that the dense models start from: digits anywhere on the canvas, and no absolute
# positions, which mean nothing in a scene.
# python tools/train.py configs/kcr/digits/kcr-dense_swin-mini_anywhere_1xb64_digits.py
_base_ = [
    './kcr-dense_swin-mini_1xb64_digits.py',
    '../../_base_/datasets/pipelines/digits_anywhere.py',
]

model = dict(backbone=dict(use_abs_pos_embed=False))
train_dataloader = dict(dataset=dict(pipeline={{_base_.anywhere_pipeline}}))

# The classifier that SETR on the digit scenes starts from: patches of 16, digits anywhere.
# python tools/train.py configs/ofb/digits/ofb-dense_vit-mini_p16_1xb64_digits.py
_base_ = [
    './ofb-dense_vit-mini_1xb64_digits.py',
    '../../_base_/datasets/pipelines/digits_anywhere.py',
]

model = dict(backbone=dict(patch_size=16))
train_dataloader = dict(dataset=dict(pipeline={{_base_.anywhere_pipeline}}))

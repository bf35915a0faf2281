# The stand-in for a foundation model of the digit scenes: five of the ten digits, patches of 16,
# and each digit anywhere on the canvas, from 0.8 to 1.3 times its size.
# python tools/train.py configs/dwconv/digits/dwconv-pretrain_vit-octo_p16_1xb64_digits-five.py
_base_ = [
    './dwconv-pretrain_vit-octo_1xb64_digits-five.py',
    '../../_base_/datasets/pipelines/digits_anywhere.py',
]

model = dict(backbone=dict(patch_size=16))
train_dataloader = dict(dataset=dict(dataset=dict(pipeline={{_base_.anywhere_pipeline}})))

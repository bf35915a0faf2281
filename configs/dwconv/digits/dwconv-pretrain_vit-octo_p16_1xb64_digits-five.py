# The stand-in for a foundation model of the digit scenes: five of the ten digits, patches of 16,
# and each digit anywhere on the canvas, from 0.8 to 1.3 times its size.
# python tools/train.py configs/dwconv/digits/dwconv-pretrain_vit-octo_p16_1xb64_digits-five.py
_base_ = './dwconv-pretrain_vit-octo_1xb64_digits-five.py'

model = dict(backbone=dict(patch_size=16))
train_dataloader = dict(
    dataset=dict(
        dataset=dict(pipeline=[
            dict(type='LoadImageFromFile'),
            dict(
                type='Rotate',
                magnitude_range=(0, 10),
                magnitude_std='inf',
                pad_val=0,
                prob=0.5,
                interpolation='bilinear'),
            # 48 x 48, of which a square of 24 to 41 is made 32
            dict(type='RandomCrop', crop_size=48, padding=8),
            dict(
                type='RandomResizedCrop',
                scale=32,
                crop_ratio_range=(0.25, 0.75),
                aspect_ratio_range=(1., 1.),
                interpolation='bilinear'),
            dict(type='PackInputs')
        ])))

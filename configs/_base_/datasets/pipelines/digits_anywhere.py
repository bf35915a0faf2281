# For classifiers whose backbone is to read the digit scenes: each digit anywhere on the canvas,
# from 0.8 to 1.3 times its size. To be put in the place of the pipeline of digits_bs64.py.
anywhere_pipeline = [
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
]

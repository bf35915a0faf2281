# Two views of each of the 1437 training digits, without their labels.
_base_ = './digits_bs64.py'

data_preprocessor = dict(
    _delete_=True,
    type='SelfSupDataPreprocessor',
    mean=[77.9] * 3,
    std=[95.9] * 3)

# A digit is never flipped, and no crop is so small that a part of an 8 is a 0.
view_pipeline = [
    dict(type='RandomResizedCrop', scale=32, crop_ratio_range=(0.5, 1.), backend='pillow'),
    dict(
        type='Rotate',
        magnitude_range=(0, 20),
        magnitude_std='inf',
        pad_val=0,
        prob=0.8,
        interpolation='bilinear'),
    dict(
        type='RandomApply',
        transforms=[dict(type='ColorJitter', brightness=0.4, contrast=0.4)],
        prob=0.8),
    dict(type='GaussianBlur', magnitude_range=(0.1, 2.0), magnitude_std='inf', prob=0.5),
]
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='MultiView', num_views=[2], transforms=[view_pipeline]),
    dict(type='PackInputs')
]

train_dataloader = dict(
    batch_size=128,
    drop_last=True,
    collate_fn=dict(type='default_collate'),
    dataset=dict(pipeline=train_pipeline))
val_dataloader = val_evaluator = test_dataloader = test_evaluator = None

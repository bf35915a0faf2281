# CIFAR-100 at 224 x 224, normalised as ImageNet, for fine-tuning.
_base_ = 'mmpretrain::_base_/datasets/cifar100_bs16.py'

data_preprocessor = dict(
    mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=False)
train_pipeline = [
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='Resize', scale=224, interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='Resize', scale=224, interpolation='bicubic'),
    dict(type='PackInputs'),
]
train_dataloader = dict(batch_size=96, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=96, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

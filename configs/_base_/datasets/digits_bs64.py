# 1797 real handwritten digits, 10 classes, 32 x 32; about 1437 to train on and 360 held out.
# python tools/dataset_converters/digits.py --out data/digits
dataset_type = 'CustomDataset'
data_root = 'data/digits'
data_preprocessor = dict(
    num_classes=10,
    # grey values of the training part, the same in all three channels
    mean=[77.9] * 3,
    std=[95.9] * 3,
    to_rgb=False)

# A digit is moved by at most a quarter of one of its 8 x 8 source pixels and turned by at most
# 10 degrees. Moved by a whole one, transformers as small as ours need many times the epochs.
# It is never flipped: a mirrored digit is no digit.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='Rotate',
        magnitude_range=(0, 10),
        magnitude_std='inf',
        pad_val=0,
        prob=0.5,
        interpolation='bilinear'),
    dict(type='RandomCrop', crop_size=32, padding=1),
    dict(type='PackInputs')
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]

train_dataloader = dict(
    batch_size=64,
    num_workers=2,
    persistent_workers=True,
    dataset=dict(
        type=dataset_type, data_root=data_root, data_prefix='train', pipeline=train_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=True))
val_dataloader = dict(
    batch_size=64,
    num_workers=2,
    persistent_workers=True,
    dataset=dict(
        type=dataset_type, data_root=data_root, data_prefix='val', pipeline=test_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='Accuracy', topk=(1, ))

test_dataloader = val_dataloader
test_evaluator = val_evaluator

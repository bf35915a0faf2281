# Digit scenes with index masks as in ADE20K, 128 x 128: 0 background, 1 to 10 the digits.
# python tools/dataset_converters/digits.py --out data/digits
# reduce_zero_label=True ignores the background: 10 classes. For 11 classes, the background
# being the first, set it to False and put 'background' in front of the classes.
# Grey values: mean 21, standard deviation 61; the data_preprocessor belongs to the model.
dataset_type = 'BaseSegDataset'
data_root = 'data/digits/scenes'
crop_size = (128, 128)
metainfo = dict(
    classes=('0', '1', '2', '3', '4', '5', '6', '7', '8', '9'),
    palette=[[31, 119, 180], [255, 127, 14], [44, 160, 44], [214, 39, 40], [148, 103, 189],
             [140, 86, 75], [227, 119, 194], [127, 127, 127], [188, 189, 34], [23, 190, 207]])

# no flip: a mirrored digit is no digit
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=crop_size, ratio_range=(0.8, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='PackSegInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=crop_size, keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]

train_dataloader = dict(
    batch_size=8,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        metainfo=metainfo,
        img_suffix='.png',
        reduce_zero_label=True,
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=8,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        metainfo=metainfo,
        img_suffix='.png',
        reduce_zero_label=True,
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        test_mode=True,
        pipeline=test_pipeline))
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])

test_dataloader = val_dataloader
test_evaluator = val_evaluator

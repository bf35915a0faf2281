# Digit scenes with boxes and masks of 10 classes, 128 x 128, in COCO's format.
# python tools/dataset_converters/digits.py --out data/digits
# Grey values: mean 21, standard deviation 61; the data_preprocessor belongs to the model.
dataset_type = 'CocoDataset'
data_root = 'data/digits/scenes/'
metainfo = dict(classes=('0', '1', '2', '3', '4', '5', '6', '7', '8', '9'))

# no flip: a mirrored digit is no digit
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomResize', scale=(128, 128), ratio_range=(0.8, 1.2), keep_ratio=True),
    dict(type='PackDetInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(128, 128), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
]

train_dataloader = dict(
    batch_size=8,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        metainfo=metainfo,
        ann_file='annotations/instances_training.json',
        data_prefix=dict(img='images/training/'),
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
        ann_file='annotations/instances_validation.json',
        data_prefix=dict(img='images/validation/'),
        test_mode=True,
        pipeline=test_pipeline))
val_evaluator = dict(
    type='CocoMetric',
    ann_file=data_root + 'annotations/instances_validation.json',
    metric=['bbox', 'segm'])

test_dataloader = val_dataloader
test_evaluator = val_evaluator

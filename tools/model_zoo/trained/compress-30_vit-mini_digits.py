auto_scale_lr = dict(base_batch_size=64)
custom_imports = dict(
    allow_failed_imports=False, imports=[
        'mmkcr',
    ])
data_preprocessor = dict(
    batch_augments=None,
    mean=[
        77.9,
        77.9,
        77.9,
    ],
    num_classes=10,
    std=[
        95.9,
        95.9,
        95.9,
    ],
    to_rgb=False,
    type='ClsDataPreprocessor')
data_root = 'data/digits'
dataset_type = 'CustomDataset'
default_hooks = dict(
    checkpoint=dict(
        _scope_='mmpretrain',
        interval=1,
        max_keep_ckpts=3,
        type='CheckpointHook'),
    exact_resume=dict(type='mmkcr.ExactResumeHook'),
    logger=dict(_scope_='mmpretrain', interval=100, type='LoggerHook'),
    param_scheduler=dict(_scope_='mmpretrain', type='ParamSchedulerHook'),
    sampler_seed=dict(_scope_='mmpretrain', type='DistSamplerSeedHook'),
    timer=dict(_scope_='mmpretrain', type='IterTimerHook'),
    visualization=dict(
        _scope_='mmpretrain', enable=False, type='VisualizationHook'))
default_scope = 'mmpretrain'
env_cfg = dict(
    cudnn_benchmark=False,
    dist_cfg=dict(backend='nccl'),
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0))
load_from = r"""{{ fileDirname }}/compress-30_vit-mini_digits-13d3f907.pth"""
log_level = 'INFO'
model = dict(
    backbone=dict(
        backbone=dict(
            arch=dict(
                embed_dims=96,
                feedforward_channels=384,
                num_heads=4,
                num_layers=4),
            img_size=32,
            out_type='avg_featmap',
            patch_size=8,
            type='mmkcr.KCRVisionTransformer',
            with_cls_token=False),
        sites=[
            'mlp_hidden',
            'head_channels',
        ],
        structure=r"""{{ fileDirname }}/compress-30_vit-mini_digits.json""",
        type='mmkcr.Searchable'),
    head=dict(
        in_channels=96,
        loss=dict(
            label_smooth_val=0.1, mode='original', type='LabelSmoothLoss'),
        num_classes=10,
        topk=(1, ),
        type='LinearClsHead'),
    type='ImageClassifier')
optim_wrapper = dict(
    optimizer=dict(
        betas=(
            0.9,
            0.999,
        ), lr=0.002, type='AdamW', weight_decay=0.05),
    paramwise_cfg=dict(
        bias_decay_mult=0.0,
        custom_keys=dict(
            pos_embed=dict(decay_mult=0.0, lr_mult=20.0),
            relative_position_bias_table=dict(decay_mult=0.0, lr_mult=20.0)),
        norm_decay_mult=0.0))
param_scheduler = [
    dict(
        by_epoch=True,
        convert_to_iter_based=True,
        end=2,
        start_factor=0.1,
        type='LinearLR'),
    dict(
        T_max=46,
        begin=2,
        by_epoch=True,
        convert_to_iter_based=True,
        end=48,
        eta_min=1e-05,
        type='CosineAnnealingLR'),
]
randomness = dict(deterministic=False, seed=0)
resume = False
test_cfg = dict()
test_dataloader = dict(
    batch_size=64,
    dataset=dict(
        data_prefix='val',
        data_root='data/digits',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='PackInputs'),
        ],
        type='CustomDataset'),
    num_workers=2,
    persistent_workers=True,
    sampler=dict(shuffle=False, type='DefaultSampler'))
test_evaluator = dict(topk=(1, ), type='Accuracy')
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='PackInputs'),
]
train_cfg = dict(by_epoch=True, max_epochs=48, val_interval=5)
train_dataloader = dict(
    batch_size=64,
    dataset=dict(
        data_prefix='train',
        data_root='data/digits',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(
                interpolation='bilinear',
                magnitude_range=(
                    0,
                    10,
                ),
                magnitude_std='inf',
                pad_val=0,
                prob=0.5,
                type='Rotate'),
            dict(crop_size=32, padding=1, type='RandomCrop'),
            dict(type='PackInputs'),
        ],
        type='CustomDataset'),
    num_workers=2,
    persistent_workers=True,
    sampler=dict(shuffle=True, type='DefaultSampler'))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        interpolation='bilinear',
        magnitude_range=(
            0,
            10,
        ),
        magnitude_std='inf',
        pad_val=0,
        prob=0.5,
        type='Rotate'),
    dict(crop_size=32, padding=1, type='RandomCrop'),
    dict(type='PackInputs'),
]
val_cfg = dict()
val_dataloader = dict(
    batch_size=64,
    dataset=dict(
        data_prefix='val',
        data_root='data/digits',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='PackInputs'),
        ],
        type='CustomDataset'),
    num_workers=2,
    persistent_workers=True,
    sampler=dict(shuffle=False, type='DefaultSampler'))
val_evaluator = dict(topk=(1, ), type='Accuracy')
vis_backends = [
    dict(_scope_='mmpretrain', type='LocalVisBackend'),
]
visualizer = dict(
    _scope_='mmpretrain',
    type='UniversalVisualizer',
    vis_backends=[
        dict(type='LocalVisBackend'),
    ])

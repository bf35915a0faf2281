auto_scale_lr = dict(base_batch_size=8)
crop_size = (
    128,
    128,
)
custom_imports = dict(
    allow_failed_imports=False, imports=[
        'mmkcr',
    ])
data_root = 'data/digits/scenes'
dataset_type = 'BaseSegDataset'
default_hooks = dict(
    checkpoint=dict(
        by_epoch=False, interval=150, max_keep_ckpts=1, type='CheckpointHook'),
    exact_resume=dict(type='mmkcr.ExactResumeHook'),
    logger=dict(interval=50, log_metric_by_epoch=False, type='LoggerHook'),
    param_scheduler=dict(type='ParamSchedulerHook'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    timer=dict(type='IterTimerHook'),
    visualization=dict(type='SegVisualizationHook'))
default_scope = 'mmseg'
env_cfg = dict(
    cudnn_benchmark=True,
    dist_cfg=dict(backend='nccl'),
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0))
expected = dict(mIoU=(
    64.0,
    8.0,
))
expected_short = dict(mIoU=(
    38.0,
    14.0,
))
load_from = r"""{{ fileDirname }}/compress-30_upernet_swin-mini_digit-scenes-07b53f61.pth"""
log_level = 'INFO'
log_processor = dict(by_epoch=False)
metainfo = dict(
    classes=(
        '0',
        '1',
        '2',
        '3',
        '4',
        '5',
        '6',
        '7',
        '8',
        '9',
    ),
    palette=[
        [
            31,
            119,
            180,
        ],
        [
            255,
            127,
            14,
        ],
        [
            44,
            160,
            44,
        ],
        [
            214,
            39,
            40,
        ],
        [
            148,
            103,
            189,
        ],
        [
            140,
            86,
            75,
        ],
        [
            227,
            119,
            194,
        ],
        [
            127,
            127,
            127,
        ],
        [
            188,
            189,
            34,
        ],
        [
            23,
            190,
            207,
        ],
    ])
model = dict(
    auxiliary_head=dict(
        align_corners=False,
        channels=32,
        concat_input=False,
        dropout_ratio=0.1,
        in_channels=96,
        in_index=1,
        loss_decode=dict(
            avg_non_ignore=True, loss_weight=0.4, type='CrossEntropyLoss'),
        norm_cfg=dict(num_groups=8, requires_grad=True, type='GN'),
        num_classes=10,
        num_convs=1,
        type='FCNHead'),
    backbone=dict(
        backbone=dict(
            arch=dict(depths=[
                2,
                2,
            ], embed_dims=48, num_heads=[
                2,
                4,
            ]),
            drop_path_rate=0.0,
            img_size=32,
            out_indices=(
                0,
                1,
            ),
            pad_small_map=True,
            patch_size=4,
            type='mmkcr.KCRSwinTransformer',
            use_abs_pos_embed=False,
            window_size=4),
        sites=[
            'mlp_hidden',
            'head_channels',
        ],
        structure=
        r"""{{ fileDirname }}/compress-30_upernet_swin-mini_digit-scenes.json""",
        type='mmkcr.Searchable'),
    data_preprocessor=dict(
        mean=[
            77.9,
            77.9,
            77.9,
        ],
        pad_val=0,
        seg_pad_val=255,
        size=(
            128,
            128,
        ),
        std=[
            95.9,
            95.9,
            95.9,
        ],
        type='SegDataPreProcessor'),
    decode_head=dict(
        align_corners=False,
        channels=32,
        dropout_ratio=0.1,
        in_channels=[
            48,
            96,
        ],
        in_index=[
            0,
            1,
        ],
        loss_decode=dict(
            avg_non_ignore=True, loss_weight=1.0, type='CrossEntropyLoss'),
        norm_cfg=dict(num_groups=8, requires_grad=True, type='GN'),
        num_classes=10,
        pool_scales=(
            1,
            2,
            4,
        ),
        type='UPerHead'),
    test_cfg=dict(mode='whole'),
    train_cfg=dict(),
    type='EncoderDecoder')
norm_cfg = dict(num_groups=8, requires_grad=True, type='GN')
optim_wrapper = dict(
    optimizer=dict(
        betas=(
            0.9,
            0.999,
        ), lr=0.001, type='AdamW', weight_decay=0.05),
    paramwise_cfg=dict(
        bias_decay_mult=0.0,
        custom_keys=dict(
            absolute_pos_embed=dict(decay_mult=0.0, lr_mult=20.0),
            relative_position_bias_table=dict(decay_mult=0.0, lr_mult=20.0)),
        norm_decay_mult=0.0),
    type='OptimWrapper')
param_scheduler = [
    dict(begin=0, by_epoch=False, end=50, start_factor=0.01, type='LinearLR'),
    dict(
        begin=50,
        by_epoch=False,
        end=450,
        eta_min=0.0,
        power=1.0,
        type='PolyLR'),
]
randomness = dict(deterministic=False, seed=0)
resume = False
test_cfg = dict(type='TestLoop')
test_dataloader = dict(
    batch_size=8,
    dataset=dict(
        data_prefix=dict(
            img_path='images/validation',
            seg_map_path='annotations/validation'),
        data_root='data/digits/scenes',
        img_suffix='.png',
        metainfo=dict(
            classes=(
                '0',
                '1',
                '2',
                '3',
                '4',
                '5',
                '6',
                '7',
                '8',
                '9',
            ),
            palette=[
                [
                    31,
                    119,
                    180,
                ],
                [
                    255,
                    127,
                    14,
                ],
                [
                    44,
                    160,
                    44,
                ],
                [
                    214,
                    39,
                    40,
                ],
                [
                    148,
                    103,
                    189,
                ],
                [
                    140,
                    86,
                    75,
                ],
                [
                    227,
                    119,
                    194,
                ],
                [
                    127,
                    127,
                    127,
                ],
                [
                    188,
                    189,
                    34,
                ],
                [
                    23,
                    190,
                    207,
                ],
            ]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(keep_ratio=True, scale=(
                128,
                128,
            ), type='Resize'),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ],
        reduce_zero_label=True,
        test_mode=True,
        type='BaseSegDataset'),
    num_workers=2,
    persistent_workers=True,
    sampler=dict(shuffle=False, type='DefaultSampler'))
test_evaluator = dict(
    iou_metrics=[
        'mIoU',
    ], type='IoUMetric')
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(keep_ratio=True, scale=(
        128,
        128,
    ), type='Resize'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_cfg = dict(max_iters=450, type='IterBasedTrainLoop', val_interval=150)
train_dataloader = dict(
    batch_size=8,
    dataset=dict(
        data_prefix=dict(
            img_path='images/training', seg_map_path='annotations/training'),
        data_root='data/digits/scenes',
        img_suffix='.png',
        metainfo=dict(
            classes=(
                '0',
                '1',
                '2',
                '3',
                '4',
                '5',
                '6',
                '7',
                '8',
                '9',
            ),
            palette=[
                [
                    31,
                    119,
                    180,
                ],
                [
                    255,
                    127,
                    14,
                ],
                [
                    44,
                    160,
                    44,
                ],
                [
                    214,
                    39,
                    40,
                ],
                [
                    148,
                    103,
                    189,
                ],
                [
                    140,
                    86,
                    75,
                ],
                [
                    227,
                    119,
                    194,
                ],
                [
                    127,
                    127,
                    127,
                ],
                [
                    188,
                    189,
                    34,
                ],
                [
                    23,
                    190,
                    207,
                ],
            ]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(
                keep_ratio=True,
                ratio_range=(
                    0.8,
                    1.5,
                ),
                scale=(
                    128,
                    128,
                ),
                type='RandomResize'),
            dict(
                cat_max_ratio=0.75, crop_size=(
                    128,
                    128,
                ), type='RandomCrop'),
            dict(type='PackSegInputs'),
        ],
        reduce_zero_label=True,
        type='BaseSegDataset'),
    num_workers=2,
    persistent_workers=True,
    sampler=dict(shuffle=True, type='InfiniteSampler'))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(
        keep_ratio=True,
        ratio_range=(
            0.8,
            1.5,
        ),
        scale=(
            128,
            128,
        ),
        type='RandomResize'),
    dict(cat_max_ratio=0.75, crop_size=(
        128,
        128,
    ), type='RandomCrop'),
    dict(type='PackSegInputs'),
]
tta_model = dict(_scope_='mmseg', type='SegTTAModel')
val_cfg = dict(type='ValLoop')
val_dataloader = dict(
    batch_size=8,
    dataset=dict(
        data_prefix=dict(
            img_path='images/validation',
            seg_map_path='annotations/validation'),
        data_root='data/digits/scenes',
        img_suffix='.png',
        metainfo=dict(
            classes=(
                '0',
                '1',
                '2',
                '3',
                '4',
                '5',
                '6',
                '7',
                '8',
                '9',
            ),
            palette=[
                [
                    31,
                    119,
                    180,
                ],
                [
                    255,
                    127,
                    14,
                ],
                [
                    44,
                    160,
                    44,
                ],
                [
                    214,
                    39,
                    40,
                ],
                [
                    148,
                    103,
                    189,
                ],
                [
                    140,
                    86,
                    75,
                ],
                [
                    227,
                    119,
                    194,
                ],
                [
                    127,
                    127,
                    127,
                ],
                [
                    188,
                    189,
                    34,
                ],
                [
                    23,
                    190,
                    207,
                ],
            ]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(keep_ratio=True, scale=(
                128,
                128,
            ), type='Resize'),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ],
        reduce_zero_label=True,
        test_mode=True,
        type='BaseSegDataset'),
    num_workers=2,
    persistent_workers=True,
    sampler=dict(shuffle=False, type='DefaultSampler'))
val_evaluator = dict(
    iou_metrics=[
        'mIoU',
    ], type='IoUMetric')
vis_backends = [
    dict(_scope_='mmseg', type='LocalVisBackend'),
]
visualizer = dict(
    _scope_='mmseg',
    name='visualizer',
    type='SegLocalVisualizer',
    vis_backends=[
        dict(type='LocalVisBackend'),
    ])

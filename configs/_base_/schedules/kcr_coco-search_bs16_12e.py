# A search on COCO itself, for 8 GPUs with 2 images each. The paper searches on ImageNet only: its
# 200 epochs become 12. lr is 1e-4 for the weights, which start from ImageNet, and 1e-3 for the
# gates, for 8 x 2 = 16 images; with --auto-scale-lr both are multiplied by images / 16.
optim_wrapper = dict(
    constructor='mmkcr.SearchOptimWrapperConstructor',
    weights=dict(
        optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
        paramwise_cfg=dict(
            custom_keys={
                'absolute_pos_embed': dict(decay_mult=0.),
                'relative_position_bias_table': dict(decay_mult=0.),
                'norm': dict(decay_mult=0.)
            })),
    architecture=dict(
        optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.)))

# to a tenth by a cosine
cosine = dict(
    type='CosineAnnealingLR', T_max=12, eta_min_ratio=0.1, by_epoch=True, end=12,
    convert_to_iter_based=True)
param_scheduler = dict(
    weights=[dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000), cosine],
    architecture=[cosine])
del cosine

# 30 % of the images train the gates, 70 % the weights
train_cfg = dict(
    type='mmkcr.BilevelTrainLoop', max_epochs=12, architecture_fraction=0.3, split_seed=0,
    val_interval=3)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

custom_hooks = [
    # 0.95^(200 / 12) = 0.425
    dict(type='mmkcr.TemperatureDecayHook', initial=4.5, decay=0.425),
    # t_warm: 90 of 200 epochs
    dict(type='mmkcr.WarmupSwitchHook', begin=5),
    # every 30 of 200 epochs
    dict(type='mmkcr.NystromRefreshHook', interval=2, landmarks=50000),
]

auto_scale_lr = dict(enable=False, base_batch_size=16)

# The search on the digit scenes, on one CPU: 200 epochs of the paper in 300 iterations.
_base_ = './digit-scenes_bs8_900i.py'

optim_wrapper = dict(
    _delete_=True,
    constructor='mmkcr.SearchOptimWrapperConstructor',
    weights=dict(
        optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
        paramwise_cfg=dict(
            norm_decay_mult=0.,
            bias_decay_mult=0.,
            # see digit-scenes_bs8_900i.py
            custom_keys={
                'absolute_pos_embed': dict(lr_mult=20., decay_mult=0.),
                'relative_position_bias_table': dict(lr_mult=20., decay_mult=0.)
            })),
    # 300 steps of 1e-3 would leave every gate where it starts, at alpha = 0.5
    architecture=dict(
        optimizer=dict(type='AdamW', lr=2e-2, betas=(0.9, 0.999), weight_decay=0.)))

param_scheduler = dict(
    _delete_=True,
    weights=[
        dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
        dict(type='PolyLR', eta_min=2e-4, power=1., by_epoch=False, begin=50, end=300)
    ],
    architecture=[
        dict(type='CosineAnnealingLR', T_max=300, eta_min=1e-2, by_epoch=False, end=300)
    ])

# 30 % of the scenes train the gates, 70 % the weights
train_cfg = dict(
    _delete_=True, type='mmkcr.IterBilevelTrainLoop', max_iters=300, architecture_fraction=0.3,
    split_seed=0, val_interval=150)

custom_hooks = [
    # 4.5 x 0.79^14 = 0.17 at the end
    dict(type='mmkcr.TemperatureDecayHook', initial=4.5, decay=0.79, interval=20, by_epoch=False),
    dict(type='mmkcr.WarmupSwitchHook', begin=100, by_epoch=False),
    dict(type='mmkcr.NystromRefreshHook', interval=50, by_epoch=False),
]

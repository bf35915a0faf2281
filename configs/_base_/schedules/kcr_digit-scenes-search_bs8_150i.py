# The search on the digit scenes, on one CPU: 200 epochs of the paper in 150 iterations.
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
    # 150 steps of 1e-3 would leave every gate where it starts, at alpha = 2
    architecture=dict(
        optimizer=dict(type='AdamW', lr=4e-2, betas=(0.9, 0.999), weight_decay=0.)))

param_scheduler = dict(
    _delete_=True,
    weights=[
        dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=25),
        dict(type='PolyLR', eta_min=2e-4, power=1., by_epoch=False, begin=25, end=150)
    ],
    architecture=[
        dict(type='CosineAnnealingLR', T_max=150, eta_min=2e-2, by_epoch=False, end=150)
    ])

# 30 % of the scenes train the gates, 70 % the weights
train_cfg = dict(
    _delete_=True, type='mmkcr.IterBilevelTrainLoop', max_iters=150, architecture_fraction=0.3,
    split_seed=0, val_interval=75)

custom_hooks = [
    # the paper's 4.5 would halve every channel of a network that is trained; 0.85^14 = 0.10
    dict(type='mmkcr.TemperatureDecayHook', initial=1., decay=0.85, interval=10, by_epoch=False),
    dict(type='mmkcr.WarmupSwitchHook', begin=50, by_epoch=False),
    dict(type='mmkcr.NystromRefreshHook', interval=25, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=150))

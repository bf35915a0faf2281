# The search on the digit scenes, on one CPU: 200 epochs of the paper in 2 of 35 iterations, each of
# which takes a step of the weights and one of the gates.
_base_ = './digit-scenes_bs8_12e.py'

optim_wrapper = dict(
    _delete_=True,
    constructor='mmkcr.SearchOptimWrapperConstructor',
    weights=dict(
        optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
        paramwise_cfg=dict(
            norm_decay_mult=0.,
            bias_decay_mult=0.,
            custom_keys={
                'absolute_pos_embed': dict(decay_mult=0.),
                'relative_position_bias_table': dict(decay_mult=0.)
            }),
        clip_grad=dict(max_norm=10.)),
    # 70 steps of 1e-3 would leave every gate where it starts, at alpha = 2
    architecture=dict(
        optimizer=dict(type='AdamW', lr=4e-2, betas=(0.9, 0.999), weight_decay=0.)))

param_scheduler = dict(
    _delete_=True,
    weights=[dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50)],
    architecture=[
        dict(type='CosineAnnealingLR', T_max=2, eta_min=2e-2, by_epoch=True, end=2,
             convert_to_iter_based=True)
    ])

# 30 % of the scenes train the gates, 70 % the weights
train_cfg = dict(
    _delete_=True, type='mmkcr.BilevelTrainLoop', max_epochs=2, architecture_fraction=0.3,
    split_seed=0, val_interval=2)

custom_hooks = [
    # the paper's 4.5 would halve every channel of a network that is trained; 0.85^13 = 0.12
    dict(type='mmkcr.TemperatureDecayHook', initial=1., decay=0.85, interval=5, by_epoch=False),
    dict(type='mmkcr.WarmupSwitchHook', begin=1),
    dict(type='mmkcr.NystromRefreshHook', interval=1),
]

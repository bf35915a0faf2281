# The search on the digits, on one CPU: 200 epochs of the paper in 16, of 16 steps each.
_base_ = './kcr_search_bs512_200e.py'

optim_wrapper = dict(
    weights=dict(
        optimizer=dict(lr=2e-3),
        # see digits_bs64_48e.py
        paramwise_cfg=dict(
            norm_decay_mult=0.,
            bias_decay_mult=0.,
            custom_keys={
                'pos_embed': dict(lr_mult=20., decay_mult=0.),
                'relative_position_bias_table': dict(lr_mult=20., decay_mult=0.)
            })),
    # 256 steps of 1e-3 would leave every gate where it starts, at alpha = 2
    architecture=dict(optimizer=dict(lr=2e-2)))

# the gates' rate only halves: the price moves them until the temperature is low
param_scheduler = dict(
    weights=[
        dict(type='CosineAnnealingLR', T_max=16, eta_min=1e-4, by_epoch=True, end=16,
             convert_to_iter_based=True)
    ],
    architecture=[
        dict(type='CosineAnnealingLR', T_max=16, eta_min=1e-2, by_epoch=True, end=16,
             convert_to_iter_based=True)
    ])
train_cfg = dict(max_epochs=16, val_interval=5)

custom_hooks = [
    # 4.5 x 0.79^15 = 0.13 at the end
    dict(type='mmkcr.TemperatureDecayHook', initial=4.5, decay=0.79),
    dict(type='mmkcr.WarmupSwitchHook', begin=5),
    dict(type='mmkcr.NystromRefreshHook', interval=2),
]

auto_scale_lr = dict(base_batch_size=64)

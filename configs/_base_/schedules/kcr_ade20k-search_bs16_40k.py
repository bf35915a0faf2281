# A search on ADE20K itself, for 8 GPUs with 2 images each. The paper searches on ImageNet only:
# its 200 epochs of 172 steps become 40000 iterations, an epoch 200 of them. lr is 6e-5 for the
# weights, which start from ImageNet, and 1e-3 for the gates, for 8 x 2 = 16 images; with
# --auto-scale-lr both are multiplied by images / 16.
_base_ = 'mmseg::_base_/schedules/schedule_160k.py'

optim_wrapper = dict(
    _delete_=True,
    constructor='mmkcr.SearchOptimWrapperConstructor',
    weights=dict(
        optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
        paramwise_cfg=dict(
            custom_keys={
                'absolute_pos_embed': dict(decay_mult=0.),
                'relative_position_bias_table': dict(decay_mult=0.),
                'norm': dict(decay_mult=0.)
            })),
    architecture=dict(
        optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.)))

param_scheduler = dict(
    _delete_=True,
    weights=[
        dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
        dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=1500, end=40000)
    ],
    architecture=[
        # 1e-3 to 0.1 x 1e-3 = 1e-4 by a cosine
        dict(type='CosineAnnealingLR', T_max=40000, eta_min_ratio=0.1, by_epoch=False, end=40000)
    ])

# 30 % of the images train the gates, 70 % the weights
train_cfg = dict(
    _delete_=True, type='mmkcr.IterBilevelTrainLoop', max_iters=40000, architecture_fraction=0.3,
    split_seed=0, val_interval=4000)

default_hooks = dict(
    checkpoint=dict(interval=4000, max_keep_ckpts=3),
    exact_resume=dict(type='mmkcr.ExactResumeHook'))
custom_hooks = [
    # 4.5 x 0.95^199 is below its floor of 1e-3 at the end
    dict(
        type='mmkcr.TemperatureDecayHook', initial=4.5, decay=0.95, interval=200, by_epoch=False),
    # t_warm: 90 of 200 epochs
    dict(type='mmkcr.WarmupSwitchHook', begin=18000, by_epoch=False),
    # every 30 of 200 epochs, from all images of the weights' part
    dict(type='mmkcr.NystromRefreshHook', interval=6000, by_epoch=False),
]

auto_scale_lr = dict(base_batch_size=16)

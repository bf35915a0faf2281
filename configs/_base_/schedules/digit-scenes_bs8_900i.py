# Segmentation of the digit scenes, on one CPU, from a backbone that knows the digits: lr is 1e-3
# for 8 images, 50 iterations of warm-up, then a straight line to 0.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        bias_decay_mult=0.,
        # a digit is anywhere: positions have much to learn, see digits_bs64_48e.py
        custom_keys={
            'absolute_pos_embed': dict(lr_mult=20., decay_mult=0.),
            'relative_position_bias_table': dict(lr_mult=20., decay_mult=0.)
        }))

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=50, end=900)
]

train_cfg = dict(type='IterBasedTrainLoop', max_iters=900, val_interval=300)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=300, max_keep_ckpts=1),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook'),
    # every random draw is a function of the seed and of where the run is
    exact_resume=dict(type='mmkcr.ExactResumeHook'))

auto_scale_lr = dict(base_batch_size=8)

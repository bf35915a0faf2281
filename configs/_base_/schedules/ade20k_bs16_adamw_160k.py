# UPerNet on ADE20K in KCR v2 (D.3), for 8 GPUs with 2 images each: 1500 iterations of warm-up,
# then a straight line to 0. lr is 6e-5 for 8 x 2 = 16 images; with --auto-scale-lr:
# 6e-5 x images / 16.
_base_ = 'mmseg::_base_/schedules/schedule_160k.py'

optim_wrapper = dict(
    optimizer=dict(
        _delete_=True, type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    # as mmseg has it: no decay on norms and position tables
    paramwise_cfg=dict(
        custom_keys={
            'absolute_pos_embed': dict(decay_mult=0.),
            'relative_position_bias_table': dict(decay_mult=0.),
            'norm': dict(decay_mult=0.)
        }))

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=1500, end=160000)
]

# every random draw is a function of the seed and of where the run is
default_hooks = dict(exact_resume=dict(type='mmkcr.ExactResumeHook'))

auto_scale_lr = dict(base_batch_size=16)

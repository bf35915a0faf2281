# lr is 1.5e-4 for 256 images. The cosine would end after 250 epochs; the run ends before.
optim_wrapper = dict(
    type='AmpOptimWrapper',
    loss_scale='dynamic',
    optimizer=dict(type='AdamW', lr=1.2e-3, betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=0.1),
    # 1e-4 for the prototypes; constant in the public code, here they follow the schedule
    paramwise_cfg=dict(
        norm_decay_mult=0., bias_decay_mult=0.,
        custom_keys={'head.image': dict(lr_mult=0.083), 'head.tokens': dict(lr_mult=0.083)}))

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-4, by_epoch=True, end=30, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=220, by_epoch=True, begin=30, end=250,
         convert_to_iter_based=True)
]

train_cfg = dict(by_epoch=True, max_epochs=200)
auto_scale_lr = dict(base_batch_size=2048)

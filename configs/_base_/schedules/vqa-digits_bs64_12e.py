# Questions about digit scenes, on one CPU: lr is 1e-3 for 64 questions, cosine after an epoch.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        bias_decay_mult=0.,
        # positions and class tokens of FLAVA start at 0
        custom_keys=dict(
            position_embeddings=dict(lr_mult=10., decay_mult=0.),
            cls_token=dict(lr_mult=10., decay_mult=0.))))

param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=11, eta_min=1e-5, by_epoch=True, begin=1, end=12,
         convert_to_iter_based=True)
]

train_cfg = dict(by_epoch=True, max_epochs=12, val_interval=6)
val_cfg = dict()
test_cfg = dict()

auto_scale_lr = dict(base_batch_size=64)

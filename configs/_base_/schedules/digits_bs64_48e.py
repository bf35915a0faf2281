# Training on the digits, on one CPU: lr is 2e-3 for 64 images, cosine to 1e-5.
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=2e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        bias_decay_mult=0.,
        # positions start at 0.02 beside patches of about 1: with a rate of their own a net learns
        # within 1000 steps where a patch is, without it stays a bag of patches for long
        custom_keys={
            'pos_embed': dict(lr_mult=20., decay_mult=0.),
            'relative_position_bias_table': dict(lr_mult=20., decay_mult=0.)
        }))

param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=46, eta_min=1e-5, by_epoch=True, begin=2,
         end=48, convert_to_iter_based=True)
]

train_cfg = dict(by_epoch=True, max_epochs=48, val_interval=5)
val_cfg = dict()
test_cfg = dict()

auto_scale_lr = dict(base_batch_size=64)

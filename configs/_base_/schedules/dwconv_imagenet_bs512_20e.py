# The first fine-tuning on ImageNet, for 8 GPUs with 64 images each. The paper gives no schedule.
# lr is 5e-5 for 8 x 64 = 512 images; with --auto-scale-lr: 5e-5 x images / 512.
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=5e-5, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        bias_decay_mult=0.,
        custom_keys={
            'pos_embed': dict(decay_mult=0.),
            'gamma': dict(decay_mult=0.)
        }))

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-2, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=18, eta_min_ratio=1e-2, by_epoch=True, begin=2, end=20,
         convert_to_iter_based=True)
]

train_cfg = dict(by_epoch=True, max_epochs=20, val_interval=5)
val_cfg = dict()
test_cfg = dict()

auto_scale_lr = dict(base_batch_size=512)

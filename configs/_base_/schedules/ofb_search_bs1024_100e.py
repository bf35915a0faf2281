# The search of OFB (appendix C and the public code), for 8 GPUs with 128 images each.
# lr is 2.5e-4 x 1024 / 256 = 1e-3; with --auto-scale-lr: 1e-3 x images / 1024. No mixup or cutmix.
optim_wrapper = dict(
    constructor='mmkcr.JointOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=1e-3),
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        bias_decay_mult=0.,
        custom_keys={
            '.cls_token': dict(decay_mult=0.),
            '.pos_embed': dict(decay_mult=0.)
        }),
    # importance and alpha: the weights' rate, with a shorter memory
    architecture=dict(betas=(0.5, 0.999), weight_decay=0.))

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=20, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=80, eta_min=1e-5, by_epoch=True, begin=20, end=100,
         convert_to_iter_based=True)
]
train_cfg = dict(by_epoch=True, max_epochs=100, val_interval=5)
val_cfg = dict()
test_cfg = dict()

custom_hooks = [
    # 20 of 100 epochs; the paper: 1 to 0 over the whole search
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.2),
    dict(type='mmkcr.LinearScheduleHook', attribute='mask_ratio', start=0.01, end=0.25),
    # an event every third of an epoch, all decided by epoch 50
    dict(type='mmkcr.ProgressivePruningHook', eta=0.2, share=0.5),
]

auto_scale_lr = dict(base_batch_size=1024)

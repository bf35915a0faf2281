# The search on the digits from the dense model, on one CPU: 16 epochs of 23 steps.
optim_wrapper = dict(
    constructor='mmkcr.JointOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    # see digits_bs64_48e.py
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        bias_decay_mult=0.,
        custom_keys={'pos_embed': dict(lr_mult=20., decay_mult=0.)}),
    # alpha decides within 184 steps; at 2e-2 it is still nearly what it was drawn as by then
    architecture=dict(lr=1e-1))

param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=15, eta_min=1e-5, by_epoch=True, begin=1, end=16,
         convert_to_iter_based=True)
]
train_cfg = dict(by_epoch=True, max_epochs=16, val_interval=5)
val_cfg = dict()
test_cfg = dict()

custom_hooks = [
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.2),
    dict(type='mmkcr.LinearScheduleHook', attribute='mask_ratio', start=0.01, end=0.25),
    dict(type='mmkcr.ProgressivePruningHook', eta=0.2, share=0.5),
]

auto_scale_lr = dict(base_batch_size=64)

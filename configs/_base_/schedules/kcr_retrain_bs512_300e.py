# The retraining of KCR-Transformer v2 (appendix C), for 8 GPUs with 64 images each. The KCR term
# and its hooks are those of methods/kcr_retrain.py, so with compression=None the rest is the recipe
# of the dense network.
# lr is 2e-3 for 8 x 64 = 512 images; with --auto-scale-lr: 2e-3 x images / 512.
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=2e-3, betas=(0.9, 0.999), weight_decay=0.01))

param_scheduler = [
    # 0.1 x 2e-3 = 2e-4 to 2e-3 over 5 epochs, then back to 0.1 x 2e-3 by a cosine
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=295, eta_min_ratio=0.1, by_epoch=True, begin=5, end=300,
         convert_to_iter_based=True)
]

train_cfg = dict(by_epoch=True, max_epochs=300, val_interval=10)
val_cfg = dict()
test_cfg = dict()

custom_hooks = [
    # The paper gives no decay of the average: 1 - 4e-5, the host's for DeiT.
    dict(type='EMAHook', momentum=4e-5, priority='ABOVE_NORMAL'),
    dict(type='mmkcr.FeatureTapHook'),  # for the KernelComplexityMetric of the validation
]

auto_scale_lr = dict(base_batch_size=512)

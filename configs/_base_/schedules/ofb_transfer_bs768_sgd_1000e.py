# Transfer to CIFAR in DeiT's appendix: SGD at 0.01, cosine, for 8 GPUs with 96 images each.
# lr is 0.01 for 8 x 96 = 768 images; with --auto-scale-lr: 0.01 x images / 768.
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=1e-4))

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=995, eta_min=1e-5, by_epoch=True, begin=5, end=1000,
         convert_to_iter_based=True)
]
train_cfg = dict(by_epoch=True, max_epochs=1000, val_interval=10)
val_cfg = dict()
test_cfg = dict()

auto_scale_lr = dict(base_batch_size=768)

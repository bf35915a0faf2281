# MoCo v3 on the digits, on one CPU: lr is 2e-3 for 128 images, cosine after 10 epochs of warm-up.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, betas=(0.9, 0.999), weight_decay=0.1))

param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=90, eta_min=1e-5, by_epoch=True, begin=10, end=100,
         convert_to_iter_based=True)
]

train_cfg = dict(by_epoch=True, max_epochs=100)
val_cfg = None
test_cfg = None
# of the hosts' configs: positions are frozen after the model was distributed
find_unused_parameters = True

auto_scale_lr = dict(base_batch_size=128)

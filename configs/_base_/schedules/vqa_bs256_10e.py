# Fine-tuning of FLAVA. Neither paper gives numbers: AdamW at 1e-4 for 256 questions, 10 epochs,
# cosine after the first, are ours.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.01))

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=9, by_epoch=True, begin=1, end=10,
         convert_to_iter_based=True)
]

train_cfg = dict(by_epoch=True, max_epochs=10)
val_cfg = dict()
test_cfg = dict()

auto_scale_lr = dict(base_batch_size=256)

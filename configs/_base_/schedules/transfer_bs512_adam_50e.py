# Transfer in KCR-Transformer v2 (D.1): Adam at a fixed 1e-5, for 8 GPUs with 64 images each.
# lr is 1e-5 for 8 x 64 = 512 images; with --auto-scale-lr: 1e-5 x images / 512.
optim_wrapper = dict(optimizer=dict(type='Adam', lr=1e-5))

train_cfg = dict(by_epoch=True, max_epochs=50, val_interval=5)
val_cfg = dict()
test_cfg = dict()

auto_scale_lr = dict(base_batch_size=512)

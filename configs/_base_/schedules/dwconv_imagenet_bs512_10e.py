# The second fine-tuning, after the replacement: half of the epochs of the first (section 4.2.2).
# lr is 5e-5 for 8 x 64 = 512 images; with --auto-scale-lr: 5e-5 x images / 512.
_base_ = './dwconv_imagenet_bs512_20e.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-2, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=9, eta_min_ratio=1e-2, by_epoch=True, begin=1, end=10,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=10)

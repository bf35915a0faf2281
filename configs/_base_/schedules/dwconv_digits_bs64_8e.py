# The second fine-tuning, after the replacement: half of the epochs of the first (section 4.2.2).
_base_ = './dwconv_digits_bs64_16e.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=7, eta_min=1e-5, by_epoch=True, begin=1,
         end=8, convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=8)

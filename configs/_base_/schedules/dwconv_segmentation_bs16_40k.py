# The second fine-tuning, after the replacement: half of the iterations of the first.
# lr is 5e-5 for 8 x 2 = 16 images; with --auto-scale-lr: 5e-5 x images / 16.
_base_ = './ade20k_bs16_adamw_160k.py'

optim_wrapper = dict(
    optimizer=dict(lr=5e-5, weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0., bias_decay_mult=0.,
                       custom_keys={'pos_embed': dict(decay_mult=0.)}))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=1500, end=40000)
]
train_cfg = dict(max_iters=40000, val_interval=8000)
default_hooks = dict(checkpoint=dict(interval=8000, max_keep_ckpts=1))

# Segmentation of the digit scenes, on one CPU: lr is 1e-3 for 8 images, a straight line to 0.
_base_ = './digit-scenes_bs8_900i.py'

optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'pos_embed': dict(lr_mult=20., decay_mult=0.)}))

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=30),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=30, end=300)
]
train_cfg = dict(max_iters=300, val_interval=300)

# Two thirds of the iterations of digit-scenes_bs8_900i.py, also for the positions of a ViT.
_base_ = './digit-scenes_bs8_900i.py'

optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'pos_embed': dict(lr_mult=20., decay_mult=0.)}))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=50, end=600)
]
train_cfg = dict(max_iters=600)

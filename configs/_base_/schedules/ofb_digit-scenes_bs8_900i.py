# Segmentation of the digit scenes: digit-scenes_bs8_900i.py, also for the positions of a ViT.
_base_ = './digit-scenes_bs8_900i.py'

optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'pos_embed': dict(lr_mult=20., decay_mult=0.)}))

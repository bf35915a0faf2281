# 36 epochs, the rate falls after the 27th and the 33rd.
_base_ = './coco_bs16_adamw_1x.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(type='MultiStepLR', begin=0, end=36, by_epoch=True, milestones=[27, 33], gamma=0.1)
]
train_cfg = dict(max_epochs=36)

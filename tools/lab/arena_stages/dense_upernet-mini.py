# UPerNet with a small Swin on the digit scenes: 450 batches of 8 after the backbone's own training.
_base_ = '../../../configs/kcr/segmentation/kcr-upernet_swin-mini_dense_1xb8_digit-scenes.py'

model = dict(backbone=dict(type='mmpretrain.SwinTransformer', init_cfg=None))
train_cfg = dict(val_interval=1000)

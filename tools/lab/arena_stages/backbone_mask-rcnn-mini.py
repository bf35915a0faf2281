# The classifier of the digits whose backbone the detectors of dense_mask-rcnn-mini.py begin with.
_base_ = '../../../configs/kcr/digits/kcr-dense_swin-mini_anywhere_1xb64_digits.py'

model = dict(backbone=dict(type='SwinTransformer'))
train_cfg = dict(val_interval=1000)

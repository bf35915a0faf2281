# Swin-T.
_base_ = 'mmpretrain::_base_/models/swin_transformer/tiny_224.py'

model = dict(
    backbone=dict(type='mmkcr.OFBSwinTransformer'),
    # no mixup and cutmix, neither in the search nor in the retraining (appendix C)
    train_cfg=None)

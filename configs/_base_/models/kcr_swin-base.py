# Swin-B. The paper's loss is the plain cross entropy (KCR v2, equation 2), and its augmentations
# are cropping and flipping (appendix C): no mixup. Stochastic depth is the host's.
_base_ = 'mmpretrain::_base_/models/swin_transformer/base_224.py'

model = dict(
    backbone=dict(type='mmkcr.KCRSwinTransformer'),
    head=dict(loss=dict(_delete_=True, type='CrossEntropyLoss')),
    train_cfg=None)

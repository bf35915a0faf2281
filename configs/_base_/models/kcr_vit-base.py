# ViT-B/16. The paper's loss is the plain cross entropy (KCR v2, equation 2).
_base_ = 'mmpretrain::_base_/models/vit-base-p16.py'

model = dict(
    backbone=dict(type='mmkcr.KCRVisionTransformer', arch='base'),
    head=dict(loss=dict(_delete_=True, type='CrossEntropyLoss')))

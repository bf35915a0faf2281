# A ViT for the 32 x 32 digits: a patch covers 2 x 2 pixels of their 8 x 8 sources, 16 tokens.
_base_ = './kcr_vit-mini.py'

model = dict(backbone=dict(type='mmkcr.OFBVisionTransformer'))

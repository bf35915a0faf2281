# ViT-S/16: mmpretrain's ViT with the arch 'deit-small' ('small' is another model).
_base_ = './kcr_vit-base.py'

model = dict(backbone=dict(arch='deit-small'), head=dict(in_channels=384))

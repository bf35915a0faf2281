# MobileViT-XS at 224 px.
_base_ = 'mmpretrain::_base_/models/mobilevit/mobilevit_xs.py'

model = dict(backbone=dict(type='mmkcr.DCSMobileViT'))

# MobileViT-S at 224 px: the token counts of the paper's table 4 (196, 49, 16) are those of 224 px.
_base_ = 'mmpretrain::_base_/models/mobilevit/mobilevit_s.py'

model = dict(backbone=dict(type='mmkcr.DCSMobileViT'))

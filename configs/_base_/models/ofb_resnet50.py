# ResNet-50.
_base_ = 'mmpretrain::_base_/models/resnet50.py'

model = dict(backbone=dict(type='mmkcr.OFBResNet'))

# UPerNet for the digit scenes, see kcr_upernet_swin-mini.py.
_base_ = './kcr_upernet_swin-mini.py'

model = dict(backbone=dict(type='mmkcr.OFBSwinTransformer'))

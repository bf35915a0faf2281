# DeiT-B.
_base_ = './ofb_deit-small.py'

model = dict(backbone=dict(arch='deit-base'), head=dict(in_channels=768))

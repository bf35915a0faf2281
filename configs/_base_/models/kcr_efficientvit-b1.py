# KCR-EfficientViT-B1: the bottlenecks after the attention are selected.
_base_ = './efficientvit-b1.py'

model = dict(backbone=dict(type='mmkcr.KCREfficientViT'))

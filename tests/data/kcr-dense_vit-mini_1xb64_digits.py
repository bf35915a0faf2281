# The digits' dense model with narrow MLPs: a calibration goes through their units one by one.
_base_ = '../../configs/kcr/digits/kcr-dense_vit-mini_1xb64_digits.py'
model = dict(backbone=dict(arch=dict(feedforward_channels=96)))

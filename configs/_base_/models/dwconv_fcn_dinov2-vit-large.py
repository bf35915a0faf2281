# DINOv2 ViT-L/14 at 336 px without a class token, a linear head on the patches.
_base_ = './dwconv_fcn_foundation-vit.py'

url = 'https://mmassets.onedl.ai/mmpretrain/v1.0/dinov2/'
file = 'vit-large-p14_dinov2-pre_3rdparty_20230426-f3302d9e.pth'
model = dict(
    backbone=dict(
        arch='dinov2-large',
        patch_size=14,
        layer_scale_init_value=1e-5,
        init_cfg=dict(type='Pretrained', checkpoint=url + file)),
    decode_head=dict(in_channels=1024, channels=1024))
del url, file

# DINOv2 ViT-B/14 at 336 px without a class token, a linear head on the patches.
_base_ = './dwconv_fcn_foundation-vit.py'

url = 'https://mmassets.onedl.ai/mmpretrain/v1.0/dinov2/'
file = 'vit-base-p14_dinov2-pre_3rdparty_20230426-ba246503.pth'
model = dict(
    backbone=dict(
        arch='dinov2-base',
        patch_size=14,
        layer_scale_init_value=1e-5,
        init_cfg=dict(type='Pretrained', checkpoint=url + file)),
    decode_head=dict(in_channels=768, channels=768))
del url, file

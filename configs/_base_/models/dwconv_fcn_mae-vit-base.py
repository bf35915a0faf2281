# MAE ViT-B/16 at 336 px without a class token, a linear head on the patches.
_base_ = './dwconv_fcn_foundation-vit.py'

url = ('https://mmassets.onedl.ai/mmselfsup/1.x/mae/'
       'mae_vit-base-p16_8xb512-fp16-coslr-1600e_in1k/')
file = 'mae_vit-base-p16_8xb512-fp16-coslr-1600e_in1k_20220825-f7569ca2.pth'
model = dict(
    backbone=dict(
        arch='base',
        patch_size=16,
        init_cfg=dict(type='Pretrained', checkpoint=url + file)),
    decode_head=dict(in_channels=768, channels=768))
del url, file

# MAE ViT-L/16 at 336 px without a class token, a linear head on the patches.
_base_ = './dwconv_fcn_foundation-vit.py'

url = ('https://mmassets.onedl.ai/mmselfsup/1.x/mae/'
       'mae_vit-large-p16_8xb512-fp16-coslr-1600e_in1k/')
file = 'mae_vit-large-p16_8xb512-fp16-coslr-1600e_in1k_20220825-cc7e98c9.pth'
model = dict(
    backbone=dict(
        arch='large',
        patch_size=16,
        init_cfg=dict(type='Pretrained', checkpoint=url + file)),
    decode_head=dict(in_channels=1024, channels=1024))
del url, file

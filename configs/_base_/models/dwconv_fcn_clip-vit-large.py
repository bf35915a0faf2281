# CLIP ViT-L/14 at 336 px without a class token, a linear head on the patches.
_base_ = './dwconv_fcn_foundation-vit.py'

url = 'https://mmassets.onedl.ai/mmclassification/v0/clip/'
file = 'vit-large-p14_clip-openai-pre_3rdparty_20230517-95e2af0b.pth'
model = dict(
    data_preprocessor=dict(
        mean=[122.770938, 116.7460125, 104.09373615],
        std=[68.5005327, 66.6321579, 70.32316305]),
    backbone=dict(
        arch='large',
        patch_size=14,
        pre_norm=True,
        layer_cfgs=dict(act_cfg=dict(type='mmpretrain.QuickGELU')),
        init_cfg=dict(type='Pretrained', checkpoint=url + file)),
    decode_head=dict(in_channels=1024, channels=1024))
del url, file

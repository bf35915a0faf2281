# CLIP ViT-B/16 at 336 px without a class token, a linear head on the patches.
_base_ = './dwconv_fcn_foundation-vit.py'

url = 'https://mmassets.onedl.ai/mmclassification/v0/clip/'
file = 'clip-vit-base-p16_openai-pre_3rdparty_in1k_20221220-c7d9c899.pth'
model = dict(
    data_preprocessor=dict(
        mean=[122.770938, 116.7460125, 104.09373615],
        std=[68.5005327, 66.6321579, 70.32316305]),
    backbone=dict(
        arch='base',
        patch_size=16,
        pre_norm=True,
        init_cfg=dict(type='Pretrained', checkpoint=url + file)),
    decode_head=dict(in_channels=768, channels=768))
del url, file

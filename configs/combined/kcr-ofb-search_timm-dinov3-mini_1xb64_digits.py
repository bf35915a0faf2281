# KCR's channels and Once-for-Both's heads in one search, on timm's DINOv3 with rotary positions.
# python tools/train.py configs/combined/kcr-ofb-search_timm-dinov3-mini_1xb64_digits.py
_base_ = ['../_base_/datasets/digits_bs64.py', '../_base_/schedules/digits_bs64_48e.py',
          'mmpretrain::_base_/default_runtime.py', '../_base_/methods/kcr_search.py']
model = dict(
    type='ImageClassifier', neck=dict(type='GlobalAveragePooling'),
    backbone=dict(type='TIMMBackbone', model_name='vit_small_patch16_dinov3', img_size=32,
                  patch_size=8, embed_dim=96, depth=4, num_heads=6,
                  features_only=True, out_indices=(3, )),
    head=dict(type='LinearClsHead', num_classes=10, in_channels=96))
compression = dict(sites=['mlp_channels', 'heads'], target='70%', gates=dict(
    _delete_=True, mlp_channels=dict(type='mmkcr.GumbelChannelGate', init=0.5),
    heads=dict(type='mmkcr.BiMaskGate', init='uniform')))

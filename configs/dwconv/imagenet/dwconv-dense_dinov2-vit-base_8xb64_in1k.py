# The first fine-tuning with attention: DINOv2 ViT-B/14 on ImageNet. Not run.
# bash tools/dist_train.sh configs/dwconv/imagenet/dwconv-dense_dinov2-vit-base_8xb64_in1k.py 8
_base_ = [
    '../../_base_/datasets/imagenet_bs64_336.py',
    '../../_base_/schedules/dwconv_imagenet_bs512_20e.py',
    '../../_base_/default_runtime.py',
]

# 336 px, no class token, a linear head on the mean of the patches behind the pretrained final norm
url = 'https://mmassets.onedl.ai/mmpretrain/v1.0/dinov2/'
file = 'vit-base-p14_dinov2-pre_3rdparty_20230426-ba246503.pth'
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        num_classes=1000,
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=True),
    backbone=dict(
        type='mmkcr.DWConvVisionTransformer',
        arch='dinov2-base',
        img_size=336,
        patch_size=14,
        layer_scale_init_value=1e-5,
        out_type='featmap',
        with_cls_token=False,
        init_cfg=dict(type='Pretrained', checkpoint=url + file)),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=768,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))
del url, file

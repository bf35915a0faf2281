# The ViT of the digits (dwconv_vit-octo.py) with a linear head for the digit scenes: 16 x 16
# tokens, the position embedding resized from 4 x 4.
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[21.] * 3,
        std=[61.] * 3,
        size=(128, 128),
        pad_val=0,
        seg_pad_val=255),
    backbone=dict(
        type='mmkcr.DWConvVisionTransformer',
        arch=dict(embed_dims=64, num_layers=8, num_heads=4, feedforward_channels=4 * 64),
        img_size=32,
        patch_size=8,
        out_type='featmap',
        with_cls_token=False),
    decode_head=dict(
        type='FCNHead',
        in_channels=64,
        in_index=0,
        channels=64,
        num_convs=0,
        concat_input=False,
        dropout_ratio=0.,
        num_classes=10,
        norm_cfg=None,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))

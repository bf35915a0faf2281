# The ViT of the digits (dwconv_vit-octo.py) with patches of 16, so that a digit is one to three
# tokens wide, and a linear head for the digit scenes: 8 x 8 tokens with positions of their own,
# which start as the classifier's, resized. Pixels are scaled as those of the digits
# (digits_bs64.py), which the backbone knows.
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[77.9] * 3,
        std=[95.9] * 3,
        size=(128, 128),
        pad_val=0,
        seg_pad_val=255),
    backbone=dict(
        type='mmkcr.DWConvVisionTransformer',
        arch=dict(embed_dims=64, num_layers=8, num_heads=4, feedforward_channels=4 * 64),
        img_size=128,
        patch_size=16,
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

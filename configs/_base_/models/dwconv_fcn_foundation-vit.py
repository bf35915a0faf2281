# A foundation ViT at 336 px without a class token, a linear head on the patches. Its arch, patches,
# weights and widths are said by the bases that start from this one.
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        size=(336, 336),
        pad_val=0,
        seg_pad_val=255),
    backbone=dict(
        type='mmkcr.DWConvVisionTransformer',
        img_size=336,
        out_type='featmap',
        with_cls_token=False),
    decode_head=dict(
        type='FCNHead',
        in_index=0,
        num_convs=0,
        concat_input=False,
        dropout_ratio=0.1,
        num_classes=171,
        norm_cfg=None,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    train_cfg=dict(),
    test_cfg=dict(mode='slide', crop_size=(336, 336), stride=(224, 224)))

# SETR-naive with the ViT of the digits (kcr_vit-mini.py) for the digit scenes: patches of 16, so
# that a digit is one to three tokens wide, and 8 x 8 tokens, whose positions are resized from 2 x 2
# when the classifier is loaded, and then learned. The heads are mmseg's, as narrow as the backbone.
norm_cfg = dict(type='GN', num_groups=8, requires_grad=True)
head = dict(
    type='SETRUPHead',
    in_channels=96,
    channels=32,
    in_index=1,
    num_classes=10,
    dropout_ratio=0,
    norm_cfg=norm_cfg,
    num_convs=1,
    up_scale=4,
    kernel_size=1,
    align_corners=False,
    loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0))
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
        type='mmkcr.OFBVisionTransformer',
        arch=dict(embed_dims=96, num_layers=4, num_heads=4, feedforward_channels=4 * 96),
        img_size=128,
        patch_size=16,
        out_type='featmap',
        out_indices=(1, 3),
        with_cls_token=False),
    decode_head=head,
    auxiliary_head=dict(head, in_index=0, loss_decode=dict(head['loss_decode'], loss_weight=0.4)),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
del head

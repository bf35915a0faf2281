# UPerNet with the Swin of the digits (kcr_swin-mini.py) for the digit scenes. Its norms see one
# image at a time. Pixels are scaled as those of the digits (digits_bs64.py), which the backbone
# knows. Losses are means over what is labelled, a tenth of a scene, so that they weigh beside a
# search's other terms as a classifier's; several processes weigh their own labelled pixels.
norm_cfg = dict(type='GN', num_groups=8, requires_grad=True)
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
        type='mmkcr.KCRSwinTransformer',
        arch=dict(embed_dims=48, depths=[2, 2], num_heads=[2, 4]),
        img_size=32,
        patch_size=4,
        window_size=4,
        use_abs_pos_embed=False,
        drop_path_rate=0.,
        out_indices=(0, 1),
        pad_small_map=True),
    decode_head=dict(
        type='UPerHead',
        in_channels=[48, 96],
        in_index=[0, 1],
        pool_scales=(1, 2, 4),
        channels=32,
        dropout_ratio=0.1,
        num_classes=10,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', avg_non_ignore=True, loss_weight=1.0)),
    auxiliary_head=dict(
        type='FCNHead',
        in_channels=96,
        in_index=1,
        channels=32,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        num_classes=10,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', avg_non_ignore=True, loss_weight=0.4)),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))

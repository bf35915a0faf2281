# A Swin for the 32 x 32 digits: two stages of 8 x 8 and 4 x 4 tokens, in windows of 4 x 4.
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmkcr.KCRSwinTransformer',
        arch=dict(embed_dims=48, depths=[2, 2], num_heads=[2, 4]),
        img_size=32,
        patch_size=4,
        window_size=4,
        use_abs_pos_embed=True,
        drop_path_rate=0.,
        out_indices=(1, )),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=96,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        topk=(1, )))

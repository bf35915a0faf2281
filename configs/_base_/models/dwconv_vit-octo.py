# A ViT of eight blocks for the 32 x 32 digits: 4 x 4 tokens, four heads of 16 channels.
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmkcr.DWConvVisionTransformer',
        arch=dict(embed_dims=64, num_layers=8, num_heads=4, feedforward_channels=4 * 64),
        img_size=32,
        patch_size=8,
        out_type='avg_featmap',
        with_cls_token=False),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=64,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        topk=(1, )))

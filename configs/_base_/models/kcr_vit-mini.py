# A ViT for the 32 x 32 digits: a patch covers 2 x 2 pixels of their 8 x 8 sources, 16 tokens.
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmkcr.KCRVisionTransformer',
        arch=dict(embed_dims=96, num_layers=4, num_heads=4, feedforward_channels=4 * 96),
        img_size=32,
        patch_size=8,
        out_type='avg_featmap',
        with_cls_token=False),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=96,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        topk=(1, )))

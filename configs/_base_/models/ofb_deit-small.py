# DeiT-S: mmpretrain's ViT with the arch 'deit-small', label smoothing 0.1.
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmkcr.OFBVisionTransformer', arch='deit-small', img_size=224, patch_size=16),
    neck=None,
    head=dict(
        type='VisionTransformerClsHead',
        num_classes=1000,
        in_channels=384,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')),
    init_cfg=[
        dict(type='TruncNormal', layer='Linear', std=.02),
        dict(type='Constant', layer='LayerNorm', val=1., bias=0.)
    ])

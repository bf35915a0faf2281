# An EfficientViT for the 32 x 32 digits: attention on 8 x 8 and on 4 x 4 positions.
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmkcr.DCSEfficientViT',
        arch=dict(widths=[16, 32, 64], depths=[1, 2, 2], head_dim=16),
        img_size=32,
        # the bottlenecks after the attention too: its projections alone are too little to slim
        local=True),
    head=dict(
        type='mmkcr.EfficientViTClsHead',
        num_classes=10,
        in_channels=64,
        widths=(128, 128),
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        topk=(1, )))

# EfficientViT-B1 (Cai et al., 2023). Its head pools by itself.
model = dict(
    type='ImageClassifier',
    backbone=dict(type='mmkcr.EfficientViT', arch='b1'),
    head=dict(
        type='mmkcr.EfficientViTClsHead',
        num_classes=1000,
        in_channels=256,
        widths=(1536, 1600),
        loss=dict(type='CrossEntropyLoss'),
        topk=(1, 5)))

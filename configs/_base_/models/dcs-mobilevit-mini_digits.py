# A MobileViT for the 32 x 32 digits: two blocks with attention, on 8 x 8 and on 4 x 4 positions.
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmkcr.DCSMobileViT',
        # channels, stride, blocks, expansion; channels, stride, width, hidden width, blocks, ...
        arch=[['mobilenetv2', 16, 1, 1, 2], ['mobilenetv2', 24, 2, 1, 2],
              ['mobilevit', 32, 1, 64, 192, 2, 2], ['mobilevit', 48, 2, 80, 240, 2, 2]],
        img_size=32,
        last_exp_factor=2,
        out_indices=(3, )),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=96,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        topk=(1, )))

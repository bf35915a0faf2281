# SSDLite with the MobileViT of the digits (dcs-mobilevit-mini_digits.py) for the digit scenes:
# digits of 16 to 48 pixels on maps of strides 4 to 32.
_base_ = 'mmdet::_base_/models/ssd300.py'

norm = dict(type='BN', eps=0.001, momentum=0.03)
channels = (32, 96, 64, 64)
model = dict(
    data_preprocessor=dict(mean=[21.] * 3, std=[61.] * 3, bgr_to_rgb=False, pad_size_divisor=1),
    backbone=dict(
        _delete_=True,
        type='mmkcr.DCSMobileViT',
        arch=[['mobilenetv2', 16, 1, 1, 2], ['mobilenetv2', 24, 2, 1, 2],
              ['mobilevit', 32, 1, 64, 192, 2, 2], ['mobilevit', 48, 2, 80, 240, 2, 2]],
        img_size=128,
        last_exp_factor=2,
        out_indices=(2, 3)),
    neck=dict(
        in_channels=channels[:2],
        out_channels=channels,
        level_strides=(2, 2),
        level_paddings=(1, 1),
        l2_norm_scale=None,
        use_depthwise=True,
        norm_cfg=norm,
        act_cfg=dict(type='ReLU6')),
    bbox_head=dict(
        type='mmkcr.SSDLiteHead',
        in_channels=channels,
        num_classes=10,
        use_depthwise=True,
        norm_cfg=norm,
        act_cfg=dict(type='ReLU6'),
        anchor_generator=dict(
            _delete_=True,
            type='SSDAnchorGenerator',
            scale_major=False,
            strides=[4, 8, 16, 32],
            ratios=[[2], [2], [2], [2]],
            min_sizes=[12, 18, 26, 38],
            max_sizes=[18, 26, 38, 56])),
    test_cfg=dict(nms_pre=200, max_per_img=20))
del norm, channels

# SSDLite 320 with the dense MobileViT-XS on COCO.
# bash tools/dist_train.sh configs/dcs/detection/dcs-ssdlite_mobilevit-xsmall_dense_8xb16_coco.py 8
# Not run. Reported: 24.8 mAP.
_base_ = '../../_base_/dcs_ssdlite_coco.py'

checkpoint = 'https://mmassets.onedl.ai/mmclassification/v0/mobilevit/mobilevit-xsmall_3rdparty_in1k_20221018-be39a6e7.pth'
model = dict(
    # what the weights were trained with: BGR over 255
    data_preprocessor=dict(mean=[0., 0., 0.], std=[255., 255., 255.], bgr_to_rgb=False),
    backbone=dict(
        _delete_=True,
        type='mmkcr.DCSMobileViT',
        arch='x_small',
        img_size=320,
        out_indices=(3, 4),
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    neck=dict(in_channels=(80, 384), out_channels=(80, 384, 512, 256, 256, 128)),
    bbox_head=dict(in_channels=(80, 384, 512, 256, 256, 128)))
del checkpoint

# SSDLite 320 with the dense MobileViT-S on COCO.
# bash tools/dist_train.sh configs/dcs/detection/dcs-ssdlite_mobilevit-small_dense_8xb16_coco.py 8
# Not run. Reported: 27.7 mAP.
_base_ = '../../_base_/dcs_ssdlite_coco.py'

checkpoint = 'https://mmassets.onedl.ai/mmclassification/v0/mobilevit/mobilevit-small_3rdparty_in1k_20221018-cb4f741c.pth'
model = dict(
    # what the weights were trained with: BGR over 255
    data_preprocessor=dict(mean=[0., 0., 0.], std=[255., 255., 255.], bgr_to_rgb=False),
    backbone=dict(
        _delete_=True,
        type='mmkcr.DCSMobileViT',
        arch='small',
        img_size=320,
        out_indices=(3, 4),
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    neck=dict(in_channels=(128, 640), out_channels=(128, 640, 512, 256, 256, 128)),
    bbox_head=dict(in_channels=(128, 640, 512, 256, 256, 128)))
del checkpoint

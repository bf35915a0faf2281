# SSDLite 320 with the dense EfficientViT-B1 on COCO.
# python tools/model_converters/efficientvit_timm.py TIMM_CHECKPOINT work_dirs/efficientvit_b1.pth
# bash tools/dist_train.sh configs/dcs/detection/dcs-ssdlite_efficientvit-b1_dense_8xb16_coco.py 8
# Not run. Reported: 28.4 mAP.
_base_ = '../../_base_/dcs_ssdlite_coco.py'

checkpoint = 'work_dirs/efficientvit_b1.pth'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmkcr.DCSEfficientViT',
        arch='b1',
        local=True,
        img_size=320,
        out_indices=(2, 3),
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    neck=dict(in_channels=(128, 256), out_channels=(128, 256, 512, 256, 256, 128)),
    bbox_head=dict(in_channels=(128, 256, 512, 256, 256, 128)))
del checkpoint

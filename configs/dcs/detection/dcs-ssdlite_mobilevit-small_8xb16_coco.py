# SSDLite 320 with DCS-MobileViT-S of ImageNet on COCO.
# bash tools/dist_train.sh configs/dcs/detection/dcs-ssdlite_mobilevit-small_8xb16_coco.py 8
# Not run. Reported: 29.0 mAP.
_base_ = './dcs-ssdlite_mobilevit-small_dense_8xb16_coco.py'

structure = 'work_dirs/dcs-search_mobilevit-small_8xb64_in1k-100/slim/structure.json'
checkpoint = 'work_dirs/dcs-retrain_mobilevit-small_8xb64_in1k/epoch_300.pth'
model = dict(backbone=dict(structure=structure, init_cfg=dict(checkpoint=checkpoint)))
del structure, checkpoint

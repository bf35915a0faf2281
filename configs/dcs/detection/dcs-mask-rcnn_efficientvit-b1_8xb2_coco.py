# Mask R-CNN FPN 1x with DCS-EfficientViT-B1 of ImageNet on COCO.
# bash tools/dist_train.sh configs/dcs/detection/dcs-mask-rcnn_efficientvit-b1_8xb2_coco.py 8
# Not run. Reported: 34.8 box AP, 33.2 mask AP.
_base_ = './dcs-mask-rcnn_efficientvit-b1_dense_8xb2_coco.py'

structure = 'work_dirs/dcs-search_efficientvit-b1_8xb64_in1k-100/slim/structure.json'
checkpoint = 'work_dirs/dcs-retrain_efficientvit-b1_8xb64_in1k/epoch_300.pth'
model = dict(backbone=dict(structure=structure, init_cfg=dict(checkpoint=checkpoint)))
del structure, checkpoint

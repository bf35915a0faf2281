# Mask R-CNN with the KCR-Swin-T of ImageNet on COCO, 1x: the cheap variant.
# bash tools/dist_train.sh configs/kcr/detection/kcr-mask-rcnn_swin-tiny_8xb2_coco.py 8
# Not run. The paper has no such row.
_base_ = './kcr-mask-rcnn_swin-tiny_dense_8xb2_coco.py'

structure = 'work_dirs/kcr-search_swin-tiny_8xb64_in1k-100/slim/structure.json'
checkpoint = 'work_dirs/kcr-retrain_swin-tiny_8xb64_in1k/epoch_300.pth'
model = dict(backbone=dict(structure=structure, init_cfg=dict(checkpoint=checkpoint)))
del structure, checkpoint

# Cascade Mask R-CNN with the KCR-Swin-B of ImageNet on COCO, 3x, multi-scale (KCR v2, D.4).
# bash tools/dist_train.sh \
#     configs/kcr/detection/kcr-cascade-mask-rcnn_swin-base_8xb2_coco.py 8
# Not run. Reported: 52.5 box AP, 45.6 mask AP.
_base_ = './kcr-cascade-mask-rcnn_swin-base_dense_8xb2_coco.py'

structure = 'work_dirs/kcr-search_swin-base_8xb64_in1k-100/slim/structure.json'
checkpoint = 'work_dirs/kcr-retrain_swin-base_8xb64_in1k/epoch_300.pth'
model = dict(backbone=dict(structure=structure, init_cfg=dict(checkpoint=checkpoint)))
del structure, checkpoint

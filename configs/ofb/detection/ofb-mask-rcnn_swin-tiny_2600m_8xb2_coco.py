# Mask R-CNN with the 2.6 G subnet of Swin-T on COCO, 1x.
# bash tools/dist_train.sh configs/ofb/detection/ofb-mask-rcnn_swin-tiny_2600m_8xb2_coco.py 8
# Not run. The paper has no such row.
_base_ = '../../kcr/detection/kcr-mask-rcnn_swin-tiny_dense_8xb2_coco.py'

structure = 'work_dirs/ofb-search_swin-tiny_2600m_8xb128_in1k/slim/structure.json'
checkpoint = 'work_dirs/ofb-retrain_swin-tiny_2600m_8xb128_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        type='mmkcr.OFBSwinTransformer', structure=structure, init_cfg=dict(checkpoint=checkpoint)))
del structure, checkpoint

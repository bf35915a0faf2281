# UPerNet with the 2.6 G subnet of Swin-T on ADE20K.
# bash tools/dist_train.sh configs/ofb/segmentation/ofb-upernet_swin-tiny_2600m_8xb2_ade20k.py 8
# Not run. The paper has no such row.
_base_ = '../../kcr/segmentation/kcr-upernet_swin-tiny_dense_8xb2_ade20k.py'

structure = 'work_dirs/ofb-search_swin-tiny_2600m_8xb128_in1k/slim/structure.json'
checkpoint = 'work_dirs/ofb-retrain_swin-tiny_2600m_8xb128_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        type='mmkcr.OFBSwinTransformer', structure=structure, init_cfg=dict(checkpoint=checkpoint)))
del structure, checkpoint

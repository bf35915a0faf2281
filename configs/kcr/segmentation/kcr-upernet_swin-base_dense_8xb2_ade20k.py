# UPerNet with the dense Swin-B on ADE20K, from mmpretrain's weights: what KCR is compared with.
# bash tools/dist_train.sh configs/kcr/segmentation/kcr-upernet_swin-base_dense_8xb2_ade20k.py 8
# Not run. Reported: 51.6 % mIoU.
_base_ = './kcr-upernet_swin-tiny_dense_8xb2_ade20k.py'

checkpoint = 'https://mmassets.onedl.ai/mmclassification/v0/swin-transformer/swin_base_224_b16x64_300e_imagenet_20210616_190742-93230b0d.pth'
model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint=checkpoint)),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512))
del checkpoint

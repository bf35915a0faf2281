# UPerNet with the dense Swin-B on ADE20K, from mmpretrain's weights of ImageNet-1k at 224 px, in
# crops of 512 x 512: the baseline of the subnet.
# bash tools/dist_train.sh configs/kcr/segmentation/kcr-upernet_swin-base_dense_8xb2_ade20k.py 8
# Not run. Reported by mmseg: 47.99 % mIoU, 49.57 at several scales and flipped. The 51.6 of KCR v2
# belong to ImageNet-22k and 640 x 640: kcr-upernet_swin-base_dense_8xb2_ade20k-640x640.py
_base_ = './kcr-upernet_swin-tiny_dense_8xb2_ade20k.py'

checkpoint = 'https://mmassets.onedl.ai/mmclassification/v0/swin-transformer/swin_base_224_b16x64_300e_imagenet_20210616_190742-93230b0d.pth'
model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint=checkpoint)),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512))
del checkpoint

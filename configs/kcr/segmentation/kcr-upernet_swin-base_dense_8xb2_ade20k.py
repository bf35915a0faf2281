# UPerNet with the dense Swin-B on ADE20K, from mmpretrain's weights: what KCR is compared with.
# bash tools/dist_train.sh configs/kcr/segmentation/kcr-upernet_swin-base_dense_8xb2_ade20k.py 8
# Not run. Reported: 51.6 % mIoU.
_base_ = [
    'mmseg::_base_/models/upernet_swin.py',
    '../../_base_/datasets/ade20k_bs16.py',
    '../../_base_/schedules/ade20k_bs16_adamw_160k.py',
    '../../_base_/segmentation_runtime.py',
]

checkpoint = 'https://mmassets.onedl.ai/mmclassification/v0/swin-transformer/swin_base_224_b16x64_300e_imagenet_20210616_190742-93230b0d.pth'
model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(
        _delete_=True,
        type='mmkcr.KCRSwinTransformer',
        arch='base',
        drop_path_rate=0.2,  # KCR v2, D.3
        out_indices=(0, 1, 2, 3),
        pad_small_map=True,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    decode_head=dict(in_channels=[128, 256, 512, 1024], num_classes=150),
    auxiliary_head=dict(in_channels=512, num_classes=150))
del checkpoint

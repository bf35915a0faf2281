# UPerNet with the dense Swin-B on ADE20K as in Liu et al. (2021a): from mmseg's weights of
# ImageNet-22k, in crops of 640 x 640. KCR v2 (table 3) quotes their 51.6 %, and names neither. It
# is no baseline of a subnet of ImageNet-1k.
# bash tools/dist_train.sh \
#     configs/kcr/segmentation/kcr-upernet_swin-base_dense_8xb2_ade20k-640x640.py 8
# bash tools/dist_test.sh \
#     configs/kcr/segmentation/kcr-upernet_swin-base_dense_8xb2_ade20k-640x640.py \
#     work_dirs/kcr-upernet_swin-base_dense_8xb2_ade20k-640x640/iter_160000.pth 8 --tta
# Not run. Reported: 51.6 % mIoU, at several scales and flipped.
_base_ = [
    'mmseg::_base_/models/upernet_swin.py',
    'mmseg::_base_/datasets/ade20k_640x640.py',
    '../../_base_/schedules/ade20k_bs16_adamw_160k.py',
    '../../_base_/segmentation_runtime.py',
]

checkpoint = 'https://mmassets.onedl.ai/mmsegmentation/v0.5/pretrain/swin/swin_base_patch4_window7_224_22k_20220317-4f79f7c0.pth'
model = dict(
    data_preprocessor=dict(size=(640, 640)),
    backbone=dict(
        embed_dims=128,
        depths=[2, 2, 18, 2],
        num_heads=[4, 8, 16, 32],
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    decode_head=dict(in_channels=[128, 256, 512, 1024], num_classes=150),
    auxiliary_head=dict(in_channels=512, num_classes=150))
del checkpoint
# the host's network, with names for its channels: nothing is searched or cut
runner_type = 'mmkcr.CompressionRunner'
compression = dict(sites=['mlp_channels'])
train_dataloader = dict(batch_size=2)

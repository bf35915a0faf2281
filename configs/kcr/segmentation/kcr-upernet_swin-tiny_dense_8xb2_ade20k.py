# UPerNet with the dense Swin-T on ADE20K, from mmpretrain's weights: what KCR is compared with.
# bash tools/dist_train.sh configs/kcr/segmentation/kcr-upernet_swin-tiny_dense_8xb2_ade20k.py 8
# Not run. The paper has no such row.
_base_ = [
    'mmseg::_base_/models/upernet_swin.py',
    'mmseg::_base_/datasets/ade20k.py',
    '../../_base_/schedules/ade20k_bs16_adamw_160k.py',
    '../../_base_/segmentation_runtime.py',
]

checkpoint = 'https://mmassets.onedl.ai/mmclassification/v0/swin-transformer/swin_tiny_224_b16x64_300e_imagenet_20210616_090925-66df6be6.pth'
model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(
        _delete_=True,
        type='mmkcr.KCRSwinTransformer',
        arch='tiny',
        drop_path_rate=0.2,  # KCR v2, D.3
        out_indices=(0, 1, 2, 3),
        pad_small_map=True,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    decode_head=dict(in_channels=[96, 192, 384, 768], num_classes=150),
    auxiliary_head=dict(in_channels=384, num_classes=150))
del checkpoint
# mmseg's transforms are those of KCR v2 (D.3): scales 0.5 to 2.0, crops of 512 x 512, flips,
# photometric distortion; --tta tests at 0.5 to 1.75, with flips
train_dataloader = dict(batch_size=2)

# SETR-naive on Cityscapes with the 3.6 G subnet of DeiT-B: table 4 of OFB has a SETR of 3.6 G, and
# that is its only model of this size.
# bash tools/dist_train.sh \
#     configs/ofb/segmentation/ofb-setr-naive_deit-base_3600m_8xb1_cityscapes.py 8
# Not run. Reported: mIoU 73.9 % (SETR with the dense DeiT-S: 73.0 %).
_base_ = 'mmseg::setr/setr_vit-l_naive_8xb1-80k_cityscapes-768x768.py'

custom_imports = dict(imports=['mmkcr'], allow_failed_imports=False)
structure = 'work_dirs/ofb-search_deit-base_3600m_8xb128_in1k/slim/structure.json'
checkpoint = 'work_dirs/ofb-retrain_deit-base_3600m_8xb128_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmkcr.OFBVisionTransformer',
        arch='deit-base',
        img_size=768,
        patch_size=16,
        out_type='featmap',
        out_indices=(4, 6, 9, 11),
        interpolate_mode='bilinear',
        structure=structure,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint, prefix='backbone.')),
    decode_head=dict(in_channels=768),
    auxiliary_head=[
        dict(
            type='SETRUPHead', in_channels=768, channels=256, in_index=index, num_classes=19,
            dropout_ratio=0, norm_cfg=dict(type='SyncBN', requires_grad=True), num_convs=1,
            up_scale=4, kernel_size=1, align_corners=False,
            loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=0.4))
        for index in range(3)
    ])
del structure, checkpoint
randomness = dict(seed=0, deterministic=False)
auto_scale_lr = dict(base_batch_size=8)

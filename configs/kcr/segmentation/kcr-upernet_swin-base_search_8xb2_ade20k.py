# The search for a KCR-Swin-B on ADE20K itself, then the slimming.
# bash tools/dist_train.sh configs/kcr/segmentation/kcr-upernet_swin-base_search_8xb2_ade20k.py 8
# python tools/slim.py configs/kcr/segmentation/kcr-upernet_swin-base_search_8xb2_ade20k.py \
#     work_dirs/kcr-upernet_swin-base_search_8xb2_ade20k/iter_40000.pth --target-macs 0.8
# Not run. The paper has no such row.
_base_ = [
    '../../_base_/models/kcr_upernet_swin-base_regularized.py',
    '../../_base_/datasets/ade20k_bs16.py',
    '../../_base_/schedules/kcr_ade20k-search_bs16_40k.py',
    '../../_base_/segmentation_runtime.py',
]

checkpoint = 'https://mmassets.onedl.ai/mmclassification/v0/swin-transformer/swin_base_224_b16x64_300e_imagenet_20210616_190742-93230b0d.pth'
model = dict(
    type='mmkcr.SearchModel',
    architecture=dict(
        backbone=dict(
            gates=dict(type='mmkcr.GumbelChannelGate'),
            init_cfg=dict(type='Pretrained', checkpoint=checkpoint))),
    price=dict(
        type='mmkcr.MacsPrice', weight=0.2, cost='macs', part='backbone',
        input_shape=(3, 512, 512)))
del checkpoint

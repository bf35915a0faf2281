# The 3.1G subnet of Swin-T, retrained from the inherited weights at 6e-4.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_swin-tiny_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-search_swin-tiny_3100m_8xb128_in1k \
#     --cfg-options compression.target=3.1G
# python tools/slim.py configs/ofb/search/ofb-search_swin-tiny_8xb128_in1k.py \
#     work_dirs/ofb-search_swin-tiny_3100m_8xb128_in1k/epoch_100.pth \
#     --out work_dirs/ofb-search_swin-tiny_3100m_8xb128_in1k/slim
# bash tools/dist_train.sh configs/ofb/retrain/ofb-retrain_swin-tiny_3100m_8xb128_in1k.py 8
# The subnets of 1.0G and 2.6G: the same with their target and folders, and at last
# RUN=work_dirs/ofb-search_swin-tiny_1000m_8xb128_in1k
# bash tools/dist_train.sh configs/ofb/retrain/ofb-retrain_swin-tiny_3100m_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-retrain_swin-tiny_1000m_8xb128_in1k --cfg-options \
#     model.backbone.structure=$RUN/slim/structure.json load_from=$RUN/slim/subnet.pth
# Not run. Reported: top-1 80.5 % (1.0G: 76.5 %, 2.6G: 79.9 %).
_base_ = [
    'mmpretrain::_base_/models/swin_transformer/tiny_224.py',
    'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py',
    '../../_base_/schedules/ofb_retrain_bs1024_300e.py',
    '../../_base_/default_runtime.py',
]

# written by tools/slim.py
slim_dir = 'work_dirs/ofb-search_swin-tiny_3100m_8xb128_in1k/slim'
# no mixup and cutmix (appendix C)
model = dict(
    backbone=dict(type='mmkcr.OFBSwinTransformer', structure=f'{slim_dir}/structure.json'),
    train_cfg=None)
load_from = f'{slim_dir}/subnet.pth'
del slim_dir
train_dataloader = dict(batch_size=128)

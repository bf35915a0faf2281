# The 1.6G subnet of ResNet-50, retrained from the inherited weights with the host's schedule.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_resnet50_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-search_resnet50_1600m_8xb128_in1k \
#     --cfg-options compression.target=1.6G
# python tools/slim.py configs/ofb/search/ofb-search_resnet50_8xb128_in1k.py \
#     work_dirs/ofb-search_resnet50_1600m_8xb128_in1k/epoch_100.pth \
#     --out work_dirs/ofb-search_resnet50_1600m_8xb128_in1k/slim
# bash tools/dist_train.sh configs/ofb/retrain/ofb-retrain_resnet50_1600m_8xb128_in1k.py 8
# Not run. Reported: top-1 75.8 %.
_base_ = [
    'mmpretrain::_base_/models/resnet50.py',
    'mmpretrain::_base_/datasets/imagenet_bs64.py',
    'mmpretrain::_base_/schedules/imagenet_bs1024_coslr.py',
    '../../_base_/default_runtime.py',
]

# written by tools/slim.py
slim_dir = 'work_dirs/ofb-search_resnet50_1600m_8xb128_in1k/slim'
model = dict(backbone=dict(type='mmkcr.OFBResNet', structure=f'{slim_dir}/structure.json'))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir
train_dataloader = dict(batch_size=128)

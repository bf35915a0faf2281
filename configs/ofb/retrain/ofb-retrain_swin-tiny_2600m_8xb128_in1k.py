# The 2.6G subnet of Swin-T, retrained from the inherited weights at 6e-4.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_swin-tiny_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-search_swin-tiny_2600m_8xb128_in1k \
#     --cfg-options compression.target=2.6G
# python tools/slim.py configs/ofb/search/ofb-search_swin-tiny_8xb128_in1k.py \
#     work_dirs/ofb-search_swin-tiny_2600m_8xb128_in1k/epoch_100.pth \
#     --out work_dirs/ofb-search_swin-tiny_2600m_8xb128_in1k/slim
# bash tools/dist_train.sh configs/ofb/retrain/ofb-retrain_swin-tiny_2600m_8xb128_in1k.py 8
# Not run. Reported: top-1 79.9 %.
_base_ = [
    '../../_base_/models/ofb_swin-tiny.py',
    'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py',
    '../../_base_/schedules/ofb_retrain_bs1024_300e.py',
    '../../_base_/default_runtime.py',
]

# written by tools/slim.py
slim_dir = 'work_dirs/ofb-search_swin-tiny_2600m_8xb128_in1k/slim'
model = dict(backbone=dict(structure=f'{slim_dir}/structure.json', drop_path_rate=0.2))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir
train_dataloader = dict(batch_size=128)

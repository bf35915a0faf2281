# The 3.6G subnet of DeiT-B, retrained from the inherited weights at 6e-4.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_deit-base_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-search_deit-base_3600m_8xb128_in1k \
#     --cfg-options compression.target=3.6G
# python tools/slim.py configs/ofb/search/ofb-search_deit-base_8xb128_in1k.py \
#     work_dirs/ofb-search_deit-base_3600m_8xb128_in1k/epoch_200.pth \
#     --out work_dirs/ofb-search_deit-base_3600m_8xb128_in1k/slim
# bash tools/dist_train.sh configs/ofb/retrain/ofb-retrain_deit-base_3600m_8xb128_in1k.py 8
# Not run. Reported: top-1 80.3 %.
_base_ = [
    '../../_base_/models/ofb_deit-base.py',
    'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py',
    '../../_base_/schedules/ofb_retrain_bs1024_deit_300e.py',
    '../../_base_/default_runtime.py',
]

# written by tools/slim.py
slim_dir = 'work_dirs/ofb-search_deit-base_3600m_8xb128_in1k/slim'
model = dict(backbone=dict(structure=f'{slim_dir}/structure.json', drop_path_rate=0.1))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir
# three views of an image in an epoch, which draws a third of the images
train_dataloader = dict(batch_size=128, sampler=dict(type='RepeatAugSampler', shuffle=True))

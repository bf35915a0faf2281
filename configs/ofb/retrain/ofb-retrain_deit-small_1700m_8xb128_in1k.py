# The 1.7G subnet of DeiT-S, retrained from the inherited weights at 6e-4.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_deit-small_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-search_deit-small_1700m_8xb128_in1k \
#     --cfg-options compression.target=1.7G
# python tools/slim.py configs/ofb/search/ofb-search_deit-small_8xb128_in1k.py \
#     work_dirs/ofb-search_deit-small_1700m_8xb128_in1k/epoch_100.pth \
#     --out work_dirs/ofb-search_deit-small_1700m_8xb128_in1k/slim
# bash tools/dist_train.sh configs/ofb/retrain/ofb-retrain_deit-small_1700m_8xb128_in1k.py 8
# The subnets of 0.9G and 1.1G: the same with their target and folders, and at last
# RUN=work_dirs/ofb-search_deit-small_900m_8xb128_in1k
# bash tools/dist_train.sh configs/ofb/retrain/ofb-retrain_deit-small_1700m_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-retrain_deit-small_900m_8xb128_in1k --cfg-options \
#     model.backbone.structure=$RUN/slim/structure.json load_from=$RUN/slim/subnet.pth
# Not run. Reported: top-1 78.0 % (0.9G: 75.0 %, 1.1G: 76.1 %).
_base_ = [
    '../../_base_/models/ofb_deit-small.py',
    'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py',
    '../../_base_/schedules/ofb_retrain_bs1024_300e.py',
    '../../_base_/default_runtime.py',
]

# written by tools/slim.py
slim_dir = 'work_dirs/ofb-search_deit-small_1700m_8xb128_in1k/slim'
model = dict(backbone=dict(structure=f'{slim_dir}/structure.json', drop_path_rate=0.1))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir
# DeiT's warm-up of 5 epochs
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=5, end=300,
         convert_to_iter_based=True)
]
# three views of an image in an epoch, which draws a third of the images
train_dataloader = dict(batch_size=128, sampler=dict(type='RepeatAugSampler', shuffle=True))

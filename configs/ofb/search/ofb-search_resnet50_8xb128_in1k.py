# OFB on ResNet-50 down to 1.6G MACs: importance and sparsity in one search that prunes as it goes.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_resnet50_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-search_resnet50_1600m_8xb128_in1k
# python tools/slim.py configs/ofb/search/ofb-search_resnet50_8xb128_in1k.py \
#     work_dirs/ofb-search_resnet50_1600m_8xb128_in1k/epoch_100.pth \
#     --out work_dirs/ofb-search_resnet50_1600m_8xb128_in1k/slim
# Not run. Reported sizes are in the configs of the retraining.
_base_ = [
    'mmpretrain::_base_/models/resnet50.py',
    'mmpretrain::_base_/datasets/imagenet_bs64.py',
    '../../_base_/schedules/ofb_search_bs1024_100e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/ofb_search.py',
]

model = dict(backbone=dict(type='mmkcr.OFBResNet'))
compression = dict(
    sites='own',
    target='1.6G')
# without masked image modelling: the paper gives no recipe for CNNs
custom_hooks = [
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.2),
    dict(type='mmkcr.ProgressivePruningHook', eta=0.2, share=0.5),
]
train_dataloader = dict(batch_size=128)
# the pretrained dense model
load_from = 'https://mmassets.onedl.ai/mmclassification/v0/resnet/' \
    'resnet50_8xb32_in1k_20210831-ea4938fc.pth'

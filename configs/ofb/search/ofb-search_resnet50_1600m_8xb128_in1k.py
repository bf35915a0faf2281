# OFB on ResNet-50 down to 1.6G MACs.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_resnet50_1600m_8xb128_in1k.py 8
# python tools/slim.py configs/ofb/search/ofb-search_resnet50_1600m_8xb128_in1k.py \
#     work_dirs/ofb-search_resnet50_1600m_8xb128_in1k/epoch_100.pth
# Not run. Reported: 1.6G MACs.
_base_ = [
    '../../_base_/models/ofb_resnet50_search.py',
    'mmpretrain::_base_/datasets/imagenet_bs64.py',
    '../../_base_/schedules/ofb_search_bs1024_cnn_100e.py',
    '../../_base_/default_runtime.py',
]

model = dict(
    architecture=dict(backbone=dict(gates=dict(type='mmkcr.BiMaskGate'))),
    price=dict(target='1.6G'))
train_dataloader = dict(batch_size=128)
# the pretrained dense model
load_from = 'https://mmassets.onedl.ai/mmclassification/v0/resnet/' \
    'resnet50_8xb32_in1k_20210831-ea4938fc.pth'

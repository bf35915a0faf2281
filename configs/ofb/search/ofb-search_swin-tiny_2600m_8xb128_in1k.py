# OFB on Swin-T down to 2.6G MACs.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_swin-tiny_2600m_8xb128_in1k.py 8
# python tools/slim.py configs/ofb/search/ofb-search_swin-tiny_2600m_8xb128_in1k.py \
#     work_dirs/ofb-search_swin-tiny_2600m_8xb128_in1k/epoch_100.pth
# Not run. Reported: 16.4 M parameters, 2.6G MACs.
_base_ = [
    '../../_base_/models/ofb_swin-tiny_search.py',
    'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py',
    '../../_base_/schedules/ofb_search_bs1024_100e.py',
    '../../_base_/default_runtime.py',
]

model = dict(
    architecture=dict(backbone=dict(gates=dict(type='mmkcr.BiMaskGate'))),
    price=dict(target='2.6G'))
train_dataloader = dict(batch_size=128)
# the pretrained dense model
load_from = 'https://mmassets.onedl.ai/mmclassification/v0/swin-transformer/' \
    'swin_tiny_224_b16x64_300e_imagenet_20210616_090925-66df6be6.pth'

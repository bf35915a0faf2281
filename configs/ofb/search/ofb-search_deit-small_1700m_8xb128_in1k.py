# OFB on DeiT-S down to 1.7G MACs: importance and sparsity in one search that prunes as it goes.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_deit-small_1700m_8xb128_in1k.py 8
# python tools/slim.py configs/ofb/search/ofb-search_deit-small_1700m_8xb128_in1k.py \
#     work_dirs/ofb-search_deit-small_1700m_8xb128_in1k/epoch_100.pth
# Not run. Reported: 8.0 M parameters, 1.7G MACs.
_base_ = [
    '../../_base_/models/ofb_deit-small_search.py',
    'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py',
    '../../_base_/schedules/ofb_search_bs1024_100e.py',
    '../../_base_/default_runtime.py',
]

model = dict(
    architecture=dict(
        backbone=dict(drop_path_rate=0.1, gates=dict(type='mmkcr.BiMaskGate'))),
    price=dict(target='1.7G'))
train_dataloader = dict(batch_size=128)
# the pretrained dense model
load_from = 'https://mmassets.onedl.ai/mmclassification/v0/deit/' \
    'deit-small_pt-4xb256_in1k_20220218-9425b9bb.pth'

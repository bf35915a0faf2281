# OFB on DeiT-S down to 1.7G MACs: importance and sparsity in one search that prunes as it goes.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_deit-small_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-search_deit-small_1700m_8xb128_in1k
# python tools/slim.py configs/ofb/search/ofb-search_deit-small_8xb128_in1k.py \
#     work_dirs/ofb-search_deit-small_1700m_8xb128_in1k/epoch_100.pth \
#     --out work_dirs/ofb-search_deit-small_1700m_8xb128_in1k/slim
# Another size: `--cfg-options compression.target=0.9G` and another folder, as in the header of
# configs/ofb/retrain/ofb-retrain_deit-small_1700m_8xb128_in1k.py.
# Not run. Reported sizes are in the configs of the retraining.
_base_ = [
    '../../_base_/models/ofb_deit-small.py',
    'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py',
    '../../_base_/schedules/ofb_search_bs1024_100e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/ofb_search.py',
]

model = dict(backbone=dict(drop_path_rate=0.1))
compression = dict(
    sites='own',
    target='1.7G',
    # masked patches are reconstructed
    wrapper=dict(
        _delete_=True,
        type='mmkcr.MaskedSearchModel',
        reconstruction=dict(in_channels=384, patch_size=16, window=47)))
train_dataloader = dict(batch_size=128)
# the pretrained dense model
load_from = 'https://mmassets.onedl.ai/mmclassification/v0/deit/' \
    'deit-small_pt-4xb256_in1k_20220218-9425b9bb.pth'

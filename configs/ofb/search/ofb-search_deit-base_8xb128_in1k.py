# OFB on DeiT-B down to 8.7G MACs: importance and sparsity in one search that prunes as it goes.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_deit-base_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-search_deit-base_8700m_8xb128_in1k
# python tools/slim.py configs/ofb/search/ofb-search_deit-base_8xb128_in1k.py \
#     work_dirs/ofb-search_deit-base_8700m_8xb128_in1k/epoch_200.pth \
#     --out work_dirs/ofb-search_deit-base_8700m_8xb128_in1k/slim
# Another size: `--cfg-options compression.target=3.6G` and another folder, as in the header of
# configs/ofb/retrain/ofb-retrain_deit-base_3600m_8xb128_in1k.py.
# Not run. Reported sizes are in the configs of the retraining.
_base_ = [
    '../../_base_/models/ofb_deit-base.py',
    'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py',
    '../../_base_/schedules/ofb_search_bs1024_200e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/ofb_search.py',
]

model = dict(backbone=dict(drop_path_rate=0.1))
compression = dict(
    sites='own',
    target='8.7G',
    # masked patches are reconstructed
    wrapper=dict(
        _delete_=True,
        type='mmkcr.MaskedSearchModel',
        reconstruction=dict(in_channels=768, patch_size=16, window=47)),
    # 'paper' has the paper's weights, 'reference' those of the public code
    price=dict(preset='balanced'))
train_dataloader = dict(batch_size=128)
# the pretrained dense model
load_from = 'https://mmassets.onedl.ai/mmclassification/v0/deit/' \
    'deit-base_pt-16xb64_in1k_20220216-db63c16c.pth'

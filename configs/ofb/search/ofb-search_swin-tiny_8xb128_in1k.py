# OFB on Swin-T down to 3.1G MACs: importance and sparsity in one search that prunes as it goes.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_swin-tiny_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-search_swin-tiny_3100m_8xb128_in1k
# python tools/slim.py configs/ofb/search/ofb-search_swin-tiny_8xb128_in1k.py \
#     work_dirs/ofb-search_swin-tiny_3100m_8xb128_in1k/epoch_100.pth \
#     --out work_dirs/ofb-search_swin-tiny_3100m_8xb128_in1k/slim
# Another size: `--cfg-options compression.target=1.0G` and another folder, as in the header of
# configs/ofb/retrain/ofb-retrain_swin-tiny_3100m_8xb128_in1k.py.
# Not run. Reported sizes are in the configs of the retraining.
_base_ = [
    'mmpretrain::_base_/models/swin_transformer/tiny_224.py',
    'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py',
    '../../_base_/schedules/ofb_search_bs1024_100e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/ofb_search.py',
]

# no mixup and cutmix, neither in the search nor in the retraining (appendix C)
model = dict(backbone=dict(type='mmkcr.OFBSwinTransformer'), train_cfg=None)
compression = dict(
    sites='own',
    target='3.1G',
    # masked patches are reconstructed
    wrapper=dict(
        _delete_=True,
        type='mmkcr.MaskedSearchModel',
        reconstruction=dict(in_channels=768, token_channels=96, patch_size=32, window=47)))
train_dataloader = dict(batch_size=128)
# the pretrained dense model
load_from = 'https://mmassets.onedl.ai/mmclassification/v0/swin-transformer/' \
    'swin_tiny_224_b16x64_300e_imagenet_20210616_090925-66df6be6.pth'

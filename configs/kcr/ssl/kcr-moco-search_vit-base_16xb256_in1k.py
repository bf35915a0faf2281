# KCR-ViT-B: a search without labels, by the loss of MoCo v3. The paper takes the channels of its
# search with labels.
# bash tools/dist_train.sh configs/kcr/ssl/kcr-moco-search_vit-base_16xb256_in1k.py 16
# python tools/slim.py configs/kcr/ssl/kcr-moco-search_vit-base_16xb256_in1k.py \
#     work_dirs/kcr-moco-search_vit-base_16xb256_in1k/epoch_300.pth --target-macs 14.5G
# Not run.
_base_ = [
    'mmpretrain::mocov3/mocov3_vit-base-p16_16xb256-amp-coslr-300e_in1k.py',
    '../../_base_/methods/kcr_search.py',
]

compression = dict(target='14.5G')

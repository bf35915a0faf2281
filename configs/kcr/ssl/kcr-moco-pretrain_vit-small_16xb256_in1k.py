# KCR-ViT-S pre-trained by MoCo v3 without labels, with the KCR term after 90 of 300 epochs (KCR v2,
# D.2). The channels are those of the search with labels; compression.structure takes others.
# bash tools/dist_train.sh configs/kcr/ssl/kcr-moco-pretrain_vit-small_16xb256_in1k.py 16
# Not run. The paper has no ViT-S here.
_base_ = [
    'mmpretrain::mocov3/mocov3_vit-small-p16_16xb256-amp-coslr-300e_in1k.py',
    '../../_base_/methods/kcr_retrain.py',
]

compression = dict(
    structure='work_dirs/kcr-search_vit-small_8xb64_in1k-100/slim/structure.json')

# A linear classifier on the frozen, pre-trained KCR-ViT-S, by mmpretrain's recipe.
# bash tools/dist_train.sh configs/kcr/ssl/kcr-moco-linear_vit-small_8xb128_in1k.py 8
# Not run.
_base_ = [
    'mmpretrain::mocov3/benchmarks/vit-small-p16_8xb128-linear-coslr-90e_in1k.py',
    '../../_base_/methods/kcr_retrain.py',
]

checkpoint = 'work_dirs/kcr-moco-pretrain_vit-small_16xb256_in1k/epoch_300.pth'
model = dict(backbone=dict(init_cfg=dict(checkpoint=checkpoint)))
del checkpoint
compression = dict(
    structure='work_dirs/kcr-search_vit-small_8xb64_in1k-100/slim/structure.json',
    # an ordinary classifier
    wrapper=None, hooks=[])

# The pre-trained KCR-ViT-B fine-tuned with labels, by mmpretrain's recipe (KCR v2, table 7).
# bash tools/dist_train.sh configs/kcr/ssl/kcr-moco-finetune_vit-base_8xb64_in1k.py 8
# Not run. Reported: top-1 84.1 %.
_base_ = [
    'mmpretrain::mocov3/benchmarks/vit-base-p16_8xb64-coslr-150e_in1k.py',
    '../../_base_/methods/kcr_retrain.py',
]

checkpoint = 'work_dirs/kcr-moco-pretrain_vit-base_16xb256_in1k/epoch_300.pth'
model = dict(backbone=dict(init_cfg=dict(checkpoint=checkpoint)))
del checkpoint
compression = dict(
    structure='work_dirs/kcr-search_vit-base_8xb64_in1k-100/slim/structure.json',
    # an ordinary classifier
    wrapper=None, hooks=[])

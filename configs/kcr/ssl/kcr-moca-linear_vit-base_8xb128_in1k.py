# A linear classifier on the frozen KCR-ViT-B that MOCA pre-trained, by the recipe of MoCo v3.
# bash tools/dist_train.sh configs/kcr/ssl/kcr-moca-linear_vit-base_8xb128_in1k.py 8
# Not run.
_base_ = './kcr-moco-linear_vit-base_8xb128_in1k.py'

checkpoint = 'work_dirs/kcr-moca-pretrain_vit-base_32xb64_in1k/epoch_200.pth'
model = dict(backbone=dict(init_cfg=dict(checkpoint=checkpoint)))
del checkpoint

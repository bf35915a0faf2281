# The KCR-ViT-B that MOCA pre-trained, fine-tuned with labels (KCR v2, table 7). The paper has one
# table for both and no recipe: that of MoCo v3.
# bash tools/dist_train.sh configs/kcr/ssl/kcr-moca-finetune_vit-base_8xb64_in1k.py 8
# Not run. Reported: top-1 84.4 %.
_base_ = './kcr-moco-finetune_vit-base_8xb64_in1k.py'

checkpoint = 'work_dirs/kcr-moca-pretrain_vit-base_32xb64_in1k/epoch_200.pth'
model = dict(backbone=dict(init_cfg=dict(checkpoint=checkpoint)))
del checkpoint

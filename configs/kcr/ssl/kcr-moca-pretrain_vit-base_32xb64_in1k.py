# KCR-ViT-B pre-trained by MOCA without labels, with the KCR term after 60 of 200 epochs (KCR v2,
# D.2). The channels are those of the search with labels; compression.structure takes others.
# bash tools/dist_train.sh configs/kcr/ssl/kcr-moca-pretrain_vit-base_32xb64_in1k.py 32
# Not run. Reported, after fine-tuning: top-1 84.4 %.
_base_ = [
    '../../_base_/models/moca_vit-base.py',
    'mmpretrain::_base_/datasets/imagenet_bs512_mocov3.py',
    '../../_base_/schedules/moca_bs2048_200e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_retrain.py',
]

train_dataloader = dict(batch_size=64)
compression = dict(
    # the masked student's visible tokens
    feature_layer='backbone.ln1',
    structure='work_dirs/kcr-search_vit-base_8xb64_in1k-100/slim/structure.json')

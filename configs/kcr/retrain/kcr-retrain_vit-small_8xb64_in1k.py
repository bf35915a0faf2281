# KCR-ViT-S, retrained from scratch: CE + 0.2 KCR after 90 of 300 epochs, EMA (KCR v2).
# bash tools/dist_train.sh configs/kcr/retrain/kcr-retrain_vit-small_8xb64_in1k.py 8
# Not run. Reported: 88.5 hours on one A100, top-1 82.2 %.
_base_ = './kcr-retrain_vit-base_8xb64_in1k.py'

# written by tools/slim.py
structure = 'work_dirs/kcr-search_vit-small_8xb64_in1k-100/slim/structure.json'
# ViT-S is mmpretrain's 'deit-small' ('small' is another model)
model = dict(backbone=dict(arch='deit-small'), head=dict(in_channels=384))
compression = dict(structure=structure, regularizers=dict(kcr=dict(num_features=384)))
del structure

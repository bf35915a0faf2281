# KCR-ViT-B, retrained from scratch: CE + 0.2 KCR after 90 of 300 epochs, EMA (KCR v2).
# bash tools/dist_train.sh configs/kcr/retrain/kcr-retrain_vit-base_8xb64_in1k.py 8
# Not run. Reported: 173.4 hours on one A100, top-1 84.6 %.
_base_ = [
    '../../_base_/models/kcr_vit-base.py',
    '../../_base_/datasets/imagenet_bs64_kc.py',
    '../../_base_/schedules/kcr_retrain_bs512_300e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_retrain.py',
]

# written by tools/slim.py
structure = 'work_dirs/kcr-search_vit-base_8xb64_in1k-100/slim/structure.json'
compression = dict(
    sites='own',
    structure=structure,
    regularizers=dict(kcr=dict(num_features=768)))
del structure

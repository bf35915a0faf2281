# KCR-EfficientViT-B1, retrained from scratch: CE + 0.2 KCR after 90 of 300 epochs, EMA (KCR v2).
# bash tools/dist_train.sh configs/kcr/retrain/kcr-retrain_efficientvit-b1_8xb64_in1k.py 8
# Not run. Reported: top-1 80.4 %.
_base_ = [
    '../../_base_/models/efficientvit-b1.py',
    '../../_base_/datasets/imagenet_bs64_kc.py',
    '../../_base_/schedules/kcr_retrain_bs512_300e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_retrain.py',
]

# written by tools/slim.py
structure = 'work_dirs/kcr-search_efficientvit-b1_8xb64_in1k-100/slim/structure.json'
model = dict(backbone=dict(type='mmkcr.KCREfficientViT'))
compression = dict(
    sites='own',
    structure=structure,
    feature_layer='head.fc:input',
    regularizers=dict(kcr=dict(num_features=1600)))
del structure

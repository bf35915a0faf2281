# DCS-EfficientViT-B1 as an ordinary classifier: for testing, fine-tuning and export.
# python tools/test.py configs/dcs/deploy/dcs-deploy_efficientvit-b1_8xb64_in1k.py \
#     work_dirs/dcs-retrain_efficientvit-b1_8xb64_in1k/epoch_300.pth
# Not run. Reported: top-1 81.2 %, 8.2 M parameters, 0.46 G.
_base_ = [
    '../../_base_/models/dcs_efficientvit-b1.py',
    'mmpretrain::_base_/datasets/imagenet_bs64.py',
    '../../_base_/schedules/imagenet_bs512_adamw_300e.py',
    '../../_base_/default_runtime.py',
]

# written by tools/slim.py
structure = 'work_dirs/dcs-search_efficientvit-b1_8xb64_in1k-100/slim/structure.json'
model = dict(backbone=dict(structure=structure))
del structure

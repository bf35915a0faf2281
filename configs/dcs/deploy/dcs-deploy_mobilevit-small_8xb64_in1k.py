# DCS-MobileViT-S as an ordinary classifier: for testing, fine-tuning and export.
# python tools/test.py configs/dcs/deploy/dcs-deploy_mobilevit-small_8xb64_in1k.py \
#     work_dirs/dcs-retrain_mobilevit-small_8xb64_in1k/epoch_300.pth
# Not run. Reported: top-1 81.0 % (table 5), 4.8 M parameters.
_base_ = [
    '../../_base_/models/dcs_mobilevit-small.py',
    'mmpretrain::_base_/datasets/imagenet_bs64.py',
    '../../_base_/schedules/imagenet_bs512_adamw_300e.py',
    '../../_base_/default_runtime.py',
]

# written by tools/slim.py
structure = 'work_dirs/dcs-search_mobilevit-small_8xb64_in1k-100/slim/structure.json'
model = dict(backbone=dict(structure=structure))
del structure
# as the host's MobileViT: BGR over 255
data_preprocessor = dict(mean=[0., 0., 0.], std=[255., 255., 255.], to_rgb=False)

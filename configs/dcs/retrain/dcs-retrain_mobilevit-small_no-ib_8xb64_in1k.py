# DCS-MobileViT-S, retrained from scratch: CE alone, EMA (DCS, appendix B).
# bash tools/dist_train.sh configs/dcs/retrain/dcs-retrain_mobilevit-small_no-ib_8xb64_in1k.py 8
# Not run. Reported: top-1 79.9 % (table 3).
_base_ = [
    '../../_base_/models/dcs_mobilevit-small.py',
    'mmpretrain::_base_/datasets/imagenet_bs64.py',
    '../../_base_/schedules/dcs_retrain_bs512_300e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/dcs_retrain.py',
]

# written by tools/slim.py
structure = 'work_dirs/dcs-search_mobilevit-small_8xb64_in1k-100/slim/structure.json'
compression = dict(
    sites='own',
    structure=structure,
    # logs what the masks leave open
    regularizers=dict(mask=dict(type='mmkcr.MaskPrice', weight=0.)))
del structure
# as the host's MobileViT: BGR over 255
data_preprocessor = dict(mean=[0., 0., 0.], std=[255., 255., 255.], to_rgb=False)

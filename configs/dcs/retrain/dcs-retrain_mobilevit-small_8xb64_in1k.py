# DCS-MobileViT-S, retrained from scratch: CE + 50 IB after 90 of 300 epochs, EMA (DCS, appendix B).
# bash tools/dist_train.sh configs/dcs/retrain/dcs-retrain_mobilevit-small_8xb64_in1k.py 8
# Not run. Reported: top-1 81.0 % (table 5), 4.8 M parameters.
_base_ = [
    'mmpretrain::_base_/models/mobilevit/mobilevit_s.py',
    'mmpretrain::_base_/datasets/imagenet_bs64.py',
    '../../_base_/schedules/dcs_retrain_bs512_300e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/dcs_retrain.py',
]

# written by tools/slim.py
structure = 'work_dirs/dcs-search_mobilevit-small_8xb64_in1k-100/slim/structure.json'
model = dict(backbone=dict(type='mmkcr.DCSMobileViT'))
compression = dict(
    sites='own',
    structure=structure,
    feature_layer='head.fc:input',
    regularizers=dict(
        # on the features that the classifier reads; eta 50 (section 4.1). When it is switched on it
        # is about 50 x ln(1000) = 345, the task's loss 7 at the most.
        ib=dict(
            type='mmkcr.InformationBottleneckLoss',
            num_features=640,
            num_classes=1000,
            weight=50.)),
    hooks=[
        dict(type='mmkcr.GateNoiseHook'),
        dict(type='mmkcr.WarmupSwitchHook', begin=90, losses='ib'),
        dict(type='mmkcr.InformationBottleneckHook'),
    ])
del structure
# as the host's MobileViT: BGR over 255
data_preprocessor = dict(mean=[0., 0., 0.], std=[255., 255., 255.], to_rgb=False)

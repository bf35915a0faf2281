# DCS-EfficientViT-B1 at 288 px, retrained from scratch: CE + 50 IB after 90 of 300 epochs, EMA
# (DCS, appendix B).
# bash tools/dist_train.sh configs/dcs/retrain/dcs-retrain_efficientvit-b1_r288_8xb64_in1k.py 8
# Not run. Reported: top-1 81.6 %, 0.72 G.
_base_ = [
    '../../_base_/models/efficientvit-b1.py',
    '../../_base_/datasets/imagenet_bs64_288.py',
    '../../_base_/schedules/dcs_retrain_bs512_300e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/dcs_retrain.py',
]

# written by tools/slim.py
structure = 'work_dirs/dcs-search_efficientvit-b1_r288_8xb64_in1k-100/slim/structure.json'
model = dict(backbone=dict(type='mmkcr.DCSEfficientViT', local=True, img_size=288))
compression = dict(
    sites='own',
    structure=structure,
    feature_layer='head.fc:input',
    regularizers=dict(
        # on the features that the classifier reads; eta 50 (section 4.1). When it is switched on it
        # is about 50 x ln(1000) = 345, the task's loss 7 at the most.
        ib=dict(
            type='mmkcr.InformationBottleneckLoss',
            num_features=1600,
            num_classes=1000,
            weight=50.)),
    hooks=[
        dict(type='mmkcr.GateNoiseHook'),
        dict(type='mmkcr.WarmupSwitchHook', begin=90, losses='ib'),
        dict(type='mmkcr.InformationBottleneckHook'),
    ])
del structure

# Retrains the subnet on the digits from the inherited weights, with the IB loss.
# python tools/train.py configs/dcs/digits/dcs-retrain_efficientvit-mini_1xb64_digits.py
_base_ = [
    '../../_base_/models/dcs-efficientvit-mini_digits.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/dcs_digits-retrain_bs64_32e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/dcs_retrain.py',
]

slim_dir = 'work_dirs/dcs-search_efficientvit-mini_1xb64_digits/slim'
compression = dict(
    # loop and hooks are those of the schedule
    sites='own', loop='plain', hooks=[],
    structure=f'{slim_dir}/structure.json',
    feature_layer='head.fc:input',
    # eta 5 of 1, 5 and the paper's 50, on a slice of the training digits (docs/dcs.md); inputs are
    # 3 x 32 x 32: with their clusters the hook reports the IB value
    regularizers=dict(
        ib=dict(
            type='mmkcr.InformationBottleneckLoss',
            num_features=128,
            num_classes=10,
            weight=5.,
            input_features=3072)))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir

# Retrains the subnet on the digits from the inherited weights, with the KCR term.
# python tools/train.py configs/kcr/digits/kcr-retrain_vit-mini_1xb64_digits.py
_base_ = [
    '../../_base_/models/kcr_vit-mini.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/kcr_digits-retrain_bs64_32e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_retrain.py',
]

slim_dir = 'work_dirs/kcr-search_vit-mini_1xb64_digits/slim'
compression = dict(
    # loop and hooks are those of the schedule
    sites='own', loop='plain', hooks=[],
    structure=f'{slim_dir}/structure.json',
    regularizers=dict(kcr=dict(num_features=96)))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir

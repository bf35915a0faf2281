# Retrains the subnet on the digits from the inherited weights.
# python tools/train.py configs/ofb/digits/ofb-retrain_vit-mini_1xb64_digits.py
_base_ = [
    '../../_base_/models/ofb_vit-mini.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/ofb_digits-retrain_bs64_24e.py',
    '../../_base_/default_runtime.py',
]

slim_dir = 'work_dirs/ofb-search_vit-mini_1xb64_digits/slim'
model = dict(backbone=dict(structure=f'{slim_dir}/structure.json'))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir

# Retrains the subnet on the digits from the inherited weights.
# python tools/train.py configs/ofb/digits/ofb-retrain_vit-mini_1xb64_digits.py
_base_ = './ofb-dense_vit-mini_1xb64_digits.py'

slim_dir = 'work_dirs/ofb-search_vit-mini_1xb64_digits/slim'
model = dict(backbone=dict(structure=f'{slim_dir}/structure.json'))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir
# from inherited weights half of the epochs are enough
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=22, eta_min=1e-5, by_epoch=True, begin=2, end=24,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=24)

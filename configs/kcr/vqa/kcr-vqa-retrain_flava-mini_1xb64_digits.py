# The subnet retrained on questions about digit scenes from inherited weights, with the KCR term.
# python tools/train.py configs/kcr/vqa/kcr-vqa-retrain_flava-mini_1xb64_digits.py
_base_ = [
    '../../_base_/models/flava-mini_vqa.py',
    '../../_base_/datasets/vqa-digits_bs64.py',
    '../../_base_/schedules/vqa-digits_bs64_12e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_retrain.py',
]

model = dict(answers={{_base_.answers}})
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=8, eta_min=1e-5, by_epoch=True, begin=1, end=9,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=9, val_interval=9)
slim_dir = 'work_dirs/kcr-vqa-search_flava-mini_1xb64_digits/slim'
compression = dict(
    structure=f'{slim_dir}/structure.json',
    weights=f'{slim_dir}/subnet.pth',
    hooks=[
        dict(type='mmkcr.WarmupSwitchHook', begin='30%'),
        dict(type='mmkcr.NystromRefreshHook', interval='30%'),
    ])
del slim_dir

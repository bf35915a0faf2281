# The search on the digits without labels, then the slimming to 80 % of the MACs.
# python tools/train.py configs/kcr/ssl/kcr-moco-search_vit-mini_1xb128_digits.py
# python tools/slim.py configs/kcr/ssl/kcr-moco-search_vit-mini_1xb128_digits.py \
#     work_dirs/kcr-moco-search_vit-mini_1xb128_digits/epoch_40.pth --target-macs 0.8
_base_ = [
    '../../_base_/models/mocov3_vit-mini.py',
    '../../_base_/datasets/digits_bs128_views.py',
    '../../_base_/schedules/mocov3_digits_bs128_100e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_search.py',
]

# 40 epochs of 7 steps of both kinds
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=4, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=36, eta_min=1e-4, by_epoch=True, begin=4, end=40,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=40)
compression = dict(
    gates=dict(init=0.5),
    target=0.8,
    price=dict(weight=0.3),
    architecture=dict(lr=2e-2),
    hooks=[
        dict(type='mmkcr.TemperatureDecayHook', initial=4.5, minimum=0.1, until='100%'),
        dict(type='mmkcr.WarmupSwitchHook', begin='45%'),
        dict(type='mmkcr.NystromRefreshHook', interval='15%',
             pipeline={{_base_.test_pipeline}}),
    ])

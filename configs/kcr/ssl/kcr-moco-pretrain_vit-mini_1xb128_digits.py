# MoCo v3 of the subnet on the digits, from scratch, with the KCR term after 30 %.
# python tools/train.py configs/kcr/ssl/kcr-moco-pretrain_vit-mini_1xb128_digits.py
_base_ = [
    '../../_base_/models/mocov3_vit-mini.py',
    '../../_base_/datasets/digits_bs128_views.py',
    '../../_base_/schedules/mocov3_digits_bs128_100e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_retrain.py',
]

compression = dict(
    structure='work_dirs/kcr-moco-search_vit-mini_1xb128_digits/slim/structure.json',
    # a sixteenth of the classifiers' weight, which costs the linear probe 23 points here
    regularizers=dict(kcr=dict(weight=0.0125)),
    hooks=[
        dict(type='mmkcr.WarmupSwitchHook', begin='30%'),
        dict(type='mmkcr.NystromRefreshHook', interval='10%',
             pipeline={{_base_.test_pipeline}}),
    ])

# The search of OFB on DeiT-B: 200 epochs with 20 of warm-up.
_base_ = './ofb_search_bs1024_100e.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=20, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=180, eta_min=1e-5, by_epoch=True, begin=20, end=200,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=200)

custom_hooks = [
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.1),
    dict(type='mmkcr.LinearScheduleHook', attribute='mask_ratio', start=0.01, end=0.25),
    dict(type='mmkcr.ProgressivePruningHook', eta=0.2, share=0.5),
]

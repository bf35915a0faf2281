# Half of the iterations of ofb_digit-scenes-search_bs8_600i.py.
_base_ = './ofb_digit-scenes-search_bs8_600i.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=30),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=30, end=300)
]
train_cfg = dict(max_iters=300)
custom_hooks = [
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.2),
    dict(type='mmkcr.ProgressivePruningHook', interval=25, eta=0.2, share=0.5),
]

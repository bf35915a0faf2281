# The search on the digit scenes, on one CPU: sizes by half of 300 iterations, see
# ofb_digits-search_bs64_16e.py. No masked image modelling: patches hidden are labels lost.
_base_ = './ofb_digit-scenes_bs8_900i.py'

optim_wrapper = dict(
    constructor='mmkcr.JointOptimWrapperConstructor', architecture=dict(lr=1e-1))

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=50, end=300)
]
train_cfg = dict(max_iters=300)

custom_hooks = [
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.2),
    dict(type='mmkcr.ProgressivePruningHook', interval=30, eta=0.2, share=0.5),
]

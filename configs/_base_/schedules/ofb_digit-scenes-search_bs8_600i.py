# The search on the digit scenes, on one CPU: sizes by half of 600 iterations, see
# ofb_digits-search_bs64_16e.py. No masked image modelling: patches hidden are labels lost.
_base_ = './ofb_digit-scenes_bs8_600i.py'

optim_wrapper = dict(
    constructor='mmkcr.JointOptimWrapperConstructor', architecture=dict(lr=1e-1))

custom_hooks = [
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.2),
    dict(type='mmkcr.ProgressivePruningHook', interval=50, eta=0.2, share=0.5),
]

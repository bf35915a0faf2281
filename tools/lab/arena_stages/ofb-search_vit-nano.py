# The search of Once for Both from the dense network: 16 epochs, masked image modelling included.
_base_ = './ofb-wrapped_vit-nano.py'

model = dict(
    architecture=dict(
        backbone=dict(gates=dict(type='mmkcr.BiMaskGate', init='random', order='importance'))))

# as in ofb_digits-search_bs64_16e.py
optim_wrapper = dict(
    constructor='mmkcr.JointOptimWrapperConstructor',
    optimizer=dict(lr=1e-3),
    architecture=dict(lr=1e-1))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=15, eta_min=1e-5, by_epoch=True, begin=1, end=16,
         convert_to_iter_based=True)
]
custom_hooks = [
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.2),
    dict(type='mmkcr.LinearScheduleHook', attribute='mask_ratio', start=0.01, end=0.25),
    dict(type='mmkcr.ProgressivePruningHook', eta=0.2, share=0.5),
]

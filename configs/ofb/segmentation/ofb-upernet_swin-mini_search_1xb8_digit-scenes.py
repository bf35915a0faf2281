# The search on the digit scenes, from the dense segmentor down to 70 % of the backbone's MACs.
# python tools/train.py configs/ofb/segmentation/ofb-upernet_swin-mini_search_1xb8_digit-scenes.py
# python tools/slim.py \
#     configs/ofb/segmentation/ofb-upernet_swin-mini_search_1xb8_digit-scenes.py \
#     work_dirs/ofb-upernet_swin-mini_search_1xb8_digit-scenes/iter_300.pth
_base_ = [
    '../../_base_/models/ofb_upernet_swin-mini.py',
    '../../_base_/datasets/digit_scenes_semantic.py',
    '../../_base_/schedules/digit-scenes_bs8_600i.py',
    '../../_base_/segmentation_runtime.py',
    '../../_base_/methods/ofb_search.py',
]

compression = dict(
    sites='own',
    target=0.7,
    part='backbone')
optim_wrapper = dict(
    constructor='mmkcr.JointOptimWrapperConstructor',
    # alpha decides within 150 steps: see ofb_digits-search_bs64_16e.py
    architecture=dict(lr=1e-1))
load_from = 'work_dirs/ofb-upernet_swin-mini_dense_1xb8_digit-scenes/iter_300.pth'
# half of the iterations of the schedule
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

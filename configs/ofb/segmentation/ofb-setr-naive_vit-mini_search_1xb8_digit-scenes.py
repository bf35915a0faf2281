# The search on the digit scenes, from the dense segmentor down to 70 % of the backbone's MACs.
# python tools/train.py configs/ofb/segmentation/ofb-setr-naive_vit-mini_search_1xb8_digit-scenes.py
# python tools/slim.py \
#     configs/ofb/segmentation/ofb-setr-naive_vit-mini_search_1xb8_digit-scenes.py \
#     work_dirs/ofb-setr-naive_vit-mini_search_1xb8_digit-scenes/iter_600.pth
_base_ = [
    '../../_base_/models/ofb_setr-naive_vit-mini.py',
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
    # a ViT's rate on the scenes
    optimizer=dict(lr=2e-3),
    # alpha decides within 300 steps: see ofb_digits-search_bs64_16e.py
    architecture=dict(lr=1e-1))
# no masked image modelling: patches hidden are labels lost
custom_hooks = [
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.2),
    dict(type='mmkcr.ProgressivePruningHook', interval=50, eta=0.2, share=0.5),
]
load_from = 'work_dirs/ofb-setr-naive_vit-mini_dense_1xb8_digit-scenes/iter_900.pth'

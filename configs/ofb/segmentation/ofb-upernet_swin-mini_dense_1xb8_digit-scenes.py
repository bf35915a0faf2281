# UPerNet with the dense backbone on the digit scenes, from the classifier's backbone.
# python tools/train.py configs/kcr/digits/kcr-dense_swin-mini_1xb64_digits.py
# python tools/train.py configs/ofb/segmentation/ofb-upernet_swin-mini_dense_1xb8_digit-scenes.py
_base_ = [
    '../../_base_/models/ofb_upernet_swin-mini.py',
    '../../_base_/datasets/digit_scenes_semantic.py',
    '../../_base_/schedules/digit-scenes_bs8_900i.py',
    '../../_base_/segmentation_runtime.py',
]

checkpoint = 'work_dirs/kcr-dense_swin-mini_1xb64_digits/epoch_48.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
del checkpoint

optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'pos_embed': dict(lr_mult=20., decay_mult=0.)}))
# a third of the iterations of the schedule
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=30),
    dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=30, end=300)
]
train_cfg = dict(max_iters=300)
# mIoU of seeds 0 to 2: 11.0 ± 2.3 (../README.md), so near to the 5 of chance that there is nothing
# to check: 300 iterations are a start for the search, not a training.

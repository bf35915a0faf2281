# DSP on the digit scenes: learns which four blocks to replace, then the static network.
# python tools/train.py configs/dwconv/segmentation/dwconv-fcn_vit-octo_search_1xb8_digit-scenes.py
# python tools/slim.py configs/dwconv/segmentation/dwconv-fcn_vit-octo_search_1xb8_digit-scenes.py \
#     work_dirs/dwconv-fcn_vit-octo_search_1xb8_digit-scenes/iter_600.pth
_base_ = [
    '../../_base_/models/dwconv_fcn_vit-octo.py',
    '../../_base_/datasets/digit_scenes_semantic.py',
    '../../_base_/schedules/digit-scenes_bs8_600i.py',
    '../../_base_/segmentation_runtime.py',
    '../../_base_/methods/dwconv_search.py',
]

compression = dict(
    sites='own',
    gates=dict(count=4),
    paramwise={'gate.alpha': dict(lr_mult=5., decay_mult=0.)})
# a ViT's rate on the scenes
optim_wrapper = dict(optimizer=dict(lr=2e-3))
train_cfg = dict(val_interval=600)
custom_hooks = [
    dict(type='mmkcr.TemperatureDecayHook', initial=1., minimum=1e-3, interval=50, until=9,
         by_epoch=False)
]
load_from = 'work_dirs/dwconv-fcn_vit-octo_dense_1xb8_digit-scenes/iter_600.pth'

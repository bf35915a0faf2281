# DSP: learns which 12 of 24 blocks of DINOv2 ViT-L/14 to replace, then the static network.
# Not run.
# bash tools/dist_train.sh configs/dwconv/imagenet/dwconv-search_dinov2-vit-large_8xb64_in1k.py 8
# python tools/slim.py configs/dwconv/imagenet/dwconv-search_dinov2-vit-large_8xb64_in1k.py \
#     work_dirs/dwconv-search_dinov2-vit-large_8xb64_in1k/epoch_40.pth
_base_ = [
    './dwconv-dense_dinov2-vit-large_8xb64_in1k.py',
    '../../_base_/methods/dwconv_search.py',
]

model = dict(backbone=dict(init_cfg=None))
# the gates' rate of the public code is 1e-2, the annealing takes 30 epochs
compression = dict(sites='own', gates=dict(count=12))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-2, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=38, eta_min_ratio=1e-2, by_epoch=True, begin=2, end=40,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=40)
custom_hooks = [dict(type='mmkcr.TemperatureDecayHook', initial=1., minimum=1e-3, until=30)]
load_from = 'work_dirs/dwconv-dense_dinov2-vit-large_8xb64_in1k/epoch_20.pth'

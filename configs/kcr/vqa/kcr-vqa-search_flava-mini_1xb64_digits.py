# The search in the image encoder on questions about digit scenes, then the slimming to 80 % of its
# MACs.
# python tools/train.py configs/kcr/vqa/kcr-vqa-search_flava-mini_1xb64_digits.py
# python tools/slim.py configs/kcr/vqa/kcr-vqa-search_flava-mini_1xb64_digits.py \
#     work_dirs/kcr-vqa-search_flava-mini_1xb64_digits/epoch_4.pth --target-macs 0.8
_base_ = [
    '../../_base_/models/flava-mini_vqa.py',
    '../../_base_/datasets/vqa-digits_bs64.py',
    '../../_base_/schedules/vqa-digits_bs64_12e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_search.py',
]

model = dict(answers={{_base_.answers}})
# 4 epochs of the weights' 70 %: with 9 of retraining as many questions as the dense model sees
param_scheduler = [
    dict(type='CosineAnnealingLR', T_max=4, eta_min=1e-4, by_epoch=True, end=4,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=4, val_interval=2)
compression = dict(
    gates=dict(init=0.5),
    target=0.8,
    price=dict(weight=0.3),
    architecture=dict(lr=2e-2),
    hooks=[
        dict(type='mmkcr.TemperatureDecayHook', initial=4.5, minimum=0.1, until='100%'),
        dict(type='mmkcr.WarmupSwitchHook', begin='45%'),
        dict(type='mmkcr.NystromRefreshHook', interval='50%'),
    ])

# The first fine-tuning, with attention, on all ten digits.
# python tools/train.py configs/dwconv/digits/dwconv-pretrain_vit-octo_1xb64_digits-five.py
# python tools/train.py configs/dwconv/digits/dwconv-dense_vit-octo_1xb64_digits.py
_base_ = [
    '../../_base_/models/dwconv_vit-octo.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/digits_bs64_48e.py',
    '../../_base_/default_runtime.py',
]

optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=15, eta_min=1e-5, by_epoch=True, begin=1,
         end=16, convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=16)
load_from = 'work_dirs/dwconv-pretrain_vit-octo_1xb64_digits-five/epoch_48.pth'

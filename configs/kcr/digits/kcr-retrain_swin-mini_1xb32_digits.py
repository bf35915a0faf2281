# Retrains the subnet on the digits from the inherited weights, with the KCR term.
# python tools/train.py configs/kcr/digits/kcr-retrain_swin-mini_1xb32_digits.py
_base_ = [
    '../../_base_/models/kcr_swin-mini_regularized.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/kcr_digits-retrain_bs64_32e.py',
    '../../_base_/default_runtime.py',
]

train_dataloader = dict(batch_size=32)

slim_dir = 'work_dirs/kcr-search_swin-mini_1xb64_digits/slim'
model = dict(architecture=dict(backbone=dict(structure=f'{slim_dir}/structure.json')))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir
# twice as many steps as of 64 images, at 1 / sqrt(2) of the rate
optim_wrapper = dict(optimizer=dict(lr=1.4e-3))
auto_scale_lr = dict(base_batch_size=32)

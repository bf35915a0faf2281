# Retrains the subnet on the digits from the inherited weights, with the KCR term.
# python tools/train.py configs/kcr/digits/kcr-retrain_swin-mini_1xb32_digits.py
_base_ = [
    '../../_base_/models/kcr_swin-mini.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/kcr_digits-retrain_bs64_32e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_retrain.py',
]

train_dataloader = dict(batch_size=32)
slim_dir = 'work_dirs/kcr-search_swin-mini_1xb64_digits/slim'
compression = dict(
    # loop and hooks are those of the schedule
    sites='own', loop='plain', hooks=[],
    structure=f'{slim_dir}/structure.json',
    regularizers=dict(kcr=dict(num_features=96)))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir
# twice as many steps as of 64 images, at 1 / sqrt(2) of the rate
optim_wrapper = dict(optimizer=dict(lr=1.4e-3))
auto_scale_lr = dict(base_batch_size=32)

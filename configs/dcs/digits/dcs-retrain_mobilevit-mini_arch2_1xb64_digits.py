# DCS-Arch2: selected attention outputs, no mask on queries and keys.
# python tools/train.py configs/dcs/digits/dcs-retrain_mobilevit-mini_arch2_1xb64_digits.py
_base_ = './dcs-retrain_mobilevit-mini_no-ib_1xb64_digits.py'

slim_dir = 'work_dirs/dcs-search_mobilevit-mini_arch2_1xb64_digits/slim'
model = dict(
    architecture=dict(
        backbone=dict(structure=f'{slim_dir}/structure.json', qk_mask=None)))
load_from = f'{slim_dir}/subnet.pth'
custom_hooks = []  # no mask, no noise
del slim_dir

# DCS-Arch2: selected attention outputs, no mask on queries and keys.
# python tools/train.py configs/dcs/digits/dcs-search_efficientvit-mini_arch2_1xb64_digits.py
# python tools/slim.py configs/dcs/digits/dcs-search_efficientvit-mini_arch2_1xb64_digits.py \
#     work_dirs/dcs-search_efficientvit-mini_arch2_1xb64_digits/epoch_16.pth --target-macs 0.8
_base_ = './dcs-search_efficientvit-mini_1xb64_digits.py'

model = dict(architecture=dict(backbone=dict(qk_mask=None)))

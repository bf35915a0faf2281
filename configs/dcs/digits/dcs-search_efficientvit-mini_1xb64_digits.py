# The search on the digits, then the slimming to 80 % of the MACs.
# python tools/train.py configs/dcs/digits/dcs-search_efficientvit-mini_1xb64_digits.py
# python tools/slim.py configs/dcs/digits/dcs-search_efficientvit-mini_1xb64_digits.py \
#     work_dirs/dcs-search_efficientvit-mini_1xb64_digits/epoch_16.pth --target-macs 0.8
_base_ = [
    '../../_base_/models/dcs-efficientvit-mini_digits.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/kcr_digits-search_bs64_16e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/dcs_search.py',
]

compression = dict(
    # loop and hooks are those of the schedule
    sites='own', loop='plain', hooks=[],
    gates=dict(init=0.5),
    target=0.8,
    # lambda x |log(MACs / target)|: it stops to pull at the target, so lambda can be large
    price=dict(weight=0.3))
custom_hooks = [
    # 4.5 x 0.79^15 = 0.13 at the end
    dict(type='mmkcr.TemperatureDecayHook', initial=4.5, decay=0.79),
]

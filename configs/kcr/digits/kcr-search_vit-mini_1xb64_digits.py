# The search on the digits, then the slimming to 80 % of the MACs.
# python tools/train.py configs/kcr/digits/kcr-search_vit-mini_1xb64_digits.py
# python tools/slim.py configs/kcr/digits/kcr-search_vit-mini_1xb64_digits.py \
#     work_dirs/kcr-search_vit-mini_1xb64_digits/epoch_16.pth --target-macs 0.8 --shape 32 32
_base_ = [
    '../../_base_/models/kcr_vit-mini.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/kcr_digits-search_bs64_16e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_search.py',
]

compression = dict(
    # loop and hooks are those of the schedule
    sites='own', loop='plain', hooks=[],
    gates=dict(init=0.5),
    regularizers=dict(kcr=dict(num_features=96)),
    target=0.8,
    # lambda x |log(MACs / target)|: it stops to pull at the target, so lambda can be large
    price=dict(weight=0.3))

# The search on the digits from the dense model, down to 60 % of the MACs, then the subnet's files.
# python tools/train.py configs/ofb/digits/ofb-search_vit-mini_1xb64_digits.py
# python tools/slim.py configs/ofb/digits/ofb-search_vit-mini_1xb64_digits.py \
#     work_dirs/ofb-search_vit-mini_1xb64_digits/epoch_16.pth
_base_ = [
    '../../_base_/models/ofb_vit-mini_search.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/ofb_digits-search_bs64_16e.py',
    '../../_base_/default_runtime.py',
]

model = dict(
    architecture=dict(
        backbone=dict(
            gates=dict(type='mmkcr.BiMaskGate', init='random', order='importance'))),
    price=dict(target=0.6))
load_from = 'work_dirs/ofb-dense_vit-mini_1xb64_digits/epoch_48.pth'

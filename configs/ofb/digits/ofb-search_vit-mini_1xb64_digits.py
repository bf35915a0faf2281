# The search on the digits from the dense model, down to 60 % of the MACs, then the subnet's files.
# python tools/train.py configs/ofb/digits/ofb-search_vit-mini_1xb64_digits.py
# python tools/slim.py configs/ofb/digits/ofb-search_vit-mini_1xb64_digits.py \
#     work_dirs/ofb-search_vit-mini_1xb64_digits/epoch_16.pth
_base_ = [
    '../../_base_/models/kcr_vit-mini.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/ofb_digits-search_bs64_16e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/ofb_search.py',
]

model = dict(backbone=dict(type='mmkcr.OFBVisionTransformer'))
compression = dict(
    sites='own',
    gates=dict(init='random', order='importance'),
    target=0.6,
    # masked patches are reconstructed
    wrapper=dict(
        _delete_=True,
        type='mmkcr.MaskedSearchModel',
        reconstruction=dict(in_channels=96, patch_size=8, window=9)))
load_from = 'work_dirs/ofb-dense_vit-mini_1xb64_digits/epoch_48.pth'

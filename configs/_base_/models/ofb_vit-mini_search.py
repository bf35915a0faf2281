# The supernet's wrapper for the digits; see ofb_deit-small_search.py.
_base_ = './ofb_vit-mini.py'

model = dict(
    _delete_=True,
    type='mmkcr.MaskedSearchModel',
    architecture={{_base_.model}},
    reconstruction=dict(
        in_channels={{_base_.model.head.in_channels}}, patch_size=8, window=9),
    # with the preset's one-hot term, 0.5 and eps 1e-3, nothing else would move alpha: see README.md
    price=dict(
        type='mmkcr.AdaptiveOneHotLoss', preset='reference', one_hot=5e-3, eps=0.05,
        input_shape=(3, 32, 32)))

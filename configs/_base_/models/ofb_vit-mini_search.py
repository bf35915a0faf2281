# The supernet's wrapper for the digits; see ofb_deit-small_search.py.
_base_ = './ofb_vit-mini.py'

model = dict(
    _delete_=True,
    type='mmkcr.MaskedSearchModel',
    architecture={{_base_.model}},
    reconstruction=dict(
        in_channels={{_base_.model.head.in_channels}}, patch_size=8, window=9),
    price=dict(
        type='mmkcr.AdaptiveOneHotLoss', preset='balanced', input_shape=(3, 32, 32)))

# The supernet's wrapper of Once for Both.
_base_ = './ofb-retrain_vit-nano.py'

model = dict(
    _delete_=True,
    type='mmkcr.MaskedSearchModel',
    architecture={{_base_.model}},
    reconstruction=dict(in_channels=64, patch_size=8, window=9),
    price=dict(
        type='mmkcr.AdaptiveOneHotLoss', preset='balanced', input_shape=(3, 32, 32), target=0.5))

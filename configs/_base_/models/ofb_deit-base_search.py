# The supernet's wrapper: masked patches are reconstructed, the price drives options to one.
_base_ = './ofb_deit-base.py'

model = dict(
    _delete_=True,
    type='mmkcr.MaskedSearchModel',
    architecture={{_base_.model}},
    reconstruction=dict(
        in_channels={{_base_.model.head.in_channels}}, patch_size=16, window=47),
    # preset='paper' has the paper's weights, 'reference' those of the public code
    price=dict(type='mmkcr.AdaptiveOneHotLoss', preset='balanced', input_shape=(3, 224, 224)))

# The supernet's wrapper; patches of 32 x 32 pixels are masked, the last stage's stride.
_base_ = './ofb_swin-tiny.py'

model = dict(
    _delete_=True,
    type='mmkcr.MaskedSearchModel',
    architecture={{_base_.model}},
    reconstruction=dict(in_channels=768, token_channels=96, patch_size=32, window=47),
    price=dict(type='mmkcr.AdaptiveOneHotLoss', preset='balanced', input_shape=(3, 224, 224)))

# The supernet's wrapper; a CNN has no tokens to mask.
_base_ = './ofb_resnet50.py'

model = dict(
    _delete_=True,
    type='mmkcr.SearchModel',
    architecture={{_base_.model}},
    price=dict(type='mmkcr.AdaptiveOneHotLoss', preset='balanced', input_shape=(3, 224, 224)))

# The supernet's wrapper for the digit scenes: the budget is that of the backbone.
_base_ = './ofb_upernet_swin-mini.py'

model = dict(
    _delete_=True,
    type='mmkcr.SearchModel',
    architecture={{_base_.model}},
    price=dict(
        type='mmkcr.AdaptiveOneHotLoss', preset='balanced', part='backbone',
        input_shape=(3, 128, 128)))

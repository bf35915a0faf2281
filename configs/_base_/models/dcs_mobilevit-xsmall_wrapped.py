# In the wrapper that regularisers and the search need; logs what the masks leave open.
_base_ = './dcs_mobilevit-xsmall.py'

model = dict(
    _delete_=True,
    type='mmkcr.RegularizedModel',
    architecture={{_base_.model}},
    regularizers=dict(mask=dict(type='mmkcr.MaskPrice', weight=0.)))

# Inside the search wrapper, without a price: the number of replaced blocks is given.
_base_ = './dwconv_fcn_vit-octo.py'

model = dict(
    _delete_=True,
    type='mmkcr.SearchModel',
    architecture={{_base_.model}},
    price=dict(type='mmkcr.MacsPrice', weight=0.))

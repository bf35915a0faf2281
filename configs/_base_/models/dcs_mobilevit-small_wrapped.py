# In the wrapper that regularisers and the search need.
_base_ = './dcs_mobilevit-small.py'

model = dict(_delete_=True, type='mmkcr.RegularizedModel', architecture={{_base_.model}})

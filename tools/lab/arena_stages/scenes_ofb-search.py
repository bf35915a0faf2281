# What the searches of Once for Both on the digit scenes share.
_base_ = '../../../configs/_base_/methods/ofb_search.py'

compression = dict(
    sites='own',
    target='50%',
    part='backbone',
    architecture=dict(lr=1e-1))

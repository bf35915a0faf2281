# The search of Once for Both, without masked image modelling: patches hidden are digits lost.
_base_ = ['./ofb-retrain_mask-rcnn-mini.py', '../../../configs/_base_/methods/ofb_search.py']

optim_wrapper = dict(optimizer=dict(lr=1e-3))
compression = dict(
    sites='own',
    target='50%',
    part='backbone',
    architecture=dict(lr=1e-1))

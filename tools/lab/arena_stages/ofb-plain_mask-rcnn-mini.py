# The search of Once for Both, without masked image modelling: patches hidden are digits lost.
_base_ = ['./ofb-retrain_mask-rcnn-mini.py', './scenes_ofb-search.py']

optim_wrapper = dict(optimizer=dict(lr=1e-3))

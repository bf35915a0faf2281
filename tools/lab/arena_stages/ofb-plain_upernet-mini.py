# The search of Once for Both, without masked image modelling: patches hidden are labels lost.
_base_ = ['./ofb-retrain_upernet-mini.py', './scenes_ofb-search.py']

optim_wrapper = dict(optimizer=dict(lr=1e-3))

# What DCS leaves, as one deploys it.
_base_ = './tune_mask-rcnn-mini.py'

compression = dict(sites=['qk_mask', 'mlp_hidden'])

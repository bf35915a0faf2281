# The search of OFB on a CNN, whose recipe the paper does not give: that of the transformers,
# without masked image modelling.
_base_ = './ofb_search_bs1024_100e.py'

custom_hooks = [
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.2),
    dict(type='mmkcr.ProgressivePruningHook', eta=0.2, share=0.5),
]

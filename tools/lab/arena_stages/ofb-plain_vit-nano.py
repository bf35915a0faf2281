# The search of Once for Both without masked image modelling.
_base_ = './ofb-search_vit-nano.py'

model = dict(reconstruction=None)
custom_hooks = [
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.2),
    dict(type='mmkcr.ProgressivePruningHook', eta=0.2, share=0.5),
]

# The search on the digits without masked image modelling.
# python tools/train.py configs/ofb/digits/ofb-search_vit-mini_no-pmim_1xb64_digits.py
_base_ = './ofb-search_vit-mini_1xb64_digits.py'

compression = dict(wrapper=dict(reconstruction=None))
custom_hooks = [
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.2),
    dict(type='mmkcr.ProgressivePruningHook', eta=0.2, share=0.5),
]

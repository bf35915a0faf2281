# DSP: learns which four blocks to replace while it trains them, from the dense model; then the
# conversion to the static network, which needs no target.
# python tools/train.py configs/dwconv/digits/dwconv-search_vit-octo_1xb64_digits.py
# python tools/slim.py configs/dwconv/digits/dwconv-search_vit-octo_1xb64_digits.py \
#     work_dirs/dwconv-search_vit-octo_1xb64_digits/epoch_16.pth
_base_ = [
    './dwconv-dense_vit-octo_1xb64_digits.py',
    '../../_base_/methods/dwconv_search.py',
]

compression = dict(
    sites='own',
    gates=dict(count=4),
    paramwise={'gate.alpha': dict(lr_mult=10., decay_mult=0.)})
custom_hooks = [dict(type='mmkcr.TemperatureDecayHook', initial=1., minimum=1e-3, until=12)]
load_from = 'work_dirs/dwconv-dense_vit-octo_1xb64_digits/epoch_16.pth'

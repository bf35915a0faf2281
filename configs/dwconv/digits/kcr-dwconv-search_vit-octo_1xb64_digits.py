# KCR's channel search on the network whose blocks have been replaced, to 70 % of that network's
# MACs; the slimming writes heads and channels to one structure file.
# python tools/train.py configs/dwconv/digits/kcr-dwconv-search_vit-octo_1xb64_digits.py
# python tools/slim.py configs/dwconv/digits/kcr-dwconv-search_vit-octo_1xb64_digits.py \
#     work_dirs/kcr-dwconv-search_vit-octo_1xb64_digits/epoch_16.pth --target-macs 0.7
_base_ = [
    '../../_base_/models/dwconv_vit-octo.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/kcr_digits-search_bs64_16e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/dwconv_search.py',
]

model = dict(
    backbone=dict(
        type='mmkcr.KCRDWConvVisionTransformer',
        structure='work_dirs/dwconv-dense_vit-octo_1xb64_digits/slim/structure.json'))
compression = dict(
    sites='own',
    gates=dict(_delete_=True, mlp_channels=dict(type='mmkcr.GumbelChannelGate', init=0.5)),
    target=0.7,
    # lambda x |log(MACs / target)|: it stops to pull at the target, so lambda can be large
    price=dict(weight=0.3),
    paramwise=None)
custom_hooks = [
    # 4.5 x 0.79^15 = 0.13 at the end
    dict(type='mmkcr.TemperatureDecayHook', initial=4.5, decay=0.79),
]
load_from = 'work_dirs/dwconv-replace_vit-octo_1xb64_digits/epoch_8.pth'

# The search in the image encoder on questions about digit scenes, then the slimming to 80 % of its
# MACs.
# python tools/train.py configs/kcr/vqa/kcr-vqa-search_flava-mini_1xb64_digits.py
# python tools/slim.py configs/kcr/vqa/kcr-vqa-search_flava-mini_1xb64_digits.py \
#     work_dirs/kcr-vqa-search_flava-mini_1xb64_digits/epoch_12.pth --target-macs 0.8
_base_ = [
    '../../_base_/models/flava-mini_vqa.py',
    '../../_base_/datasets/vqa-digits_bs64.py',
    '../../_base_/schedules/vqa-digits_bs64_12e.py',
    '../../_base_/compressed_runtime.py',
    '../../_base_/methods/kcr_search.py',
]

model = dict(answers={{_base_.answers}})
compression = dict(
    gates=dict(init=0.5),
    target=0.8,
    price=dict(weight=0.3),
    architecture=dict(lr=2e-2),
    hooks=[
        dict(type='mmkcr.TemperatureDecayHook', initial=4.5, minimum=0.1, until='100%'),
        dict(type='mmkcr.WarmupSwitchHook', begin='45%'),
        dict(type='mmkcr.NystromRefreshHook', interval='15%'),
    ])

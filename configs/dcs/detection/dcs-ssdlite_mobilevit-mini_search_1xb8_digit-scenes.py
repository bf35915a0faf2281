# The search on the digit scenes themselves: 4 of the dense detector's 12 epochs, then the slimming
# to 85 % of the backbone's MACs. What it left is trained for 8 more.
# python tools/train.py configs/dcs/detection/dcs-ssdlite_mobilevit-mini_search_1xb8_digit-scenes.py
# RUN=work_dirs/dcs-ssdlite_mobilevit-mini_search_1xb8_digit-scenes
# python tools/slim.py \
#     configs/dcs/detection/dcs-ssdlite_mobilevit-mini_search_1xb8_digit-scenes.py \
#     $RUN/epoch_4.pth --target-macs 0.85
# python tools/train.py configs/dcs/detection/dcs-ssdlite_mobilevit-mini_1xb8_digit-scenes.py \
#     --work-dir work_dirs/dcs-ssdlite_mobilevit-mini_slim_1xb8_digit-scenes --cfg-options \
#     model.backbone.structure=$RUN/slim/structure.json model.backbone.init_cfg=None \
#     load_from=$RUN/slim/subnet.pth train_cfg.max_epochs=8 param_scheduler.1.T_max=7 \
#     param_scheduler.1.end=8
_base_ = [
    './dcs-ssdlite_mobilevit-mini_dense_1xb8_digit-scenes.py',
    '../../_base_/methods/dcs_search.py',
]

compression = dict(
    sites='own',
    target=0.85,
    # lambda x |log(MACs / target)|: it stops to pull at the target, so lambda can be large
    price=dict(weight=0.3),
    # 140 steps of 1e-3 would leave every gate where it starts
    architecture=dict(lr=4e-2))
param_scheduler = [dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50)]
train_cfg = dict(max_epochs=4)
# the paper's 4.5 would halve every channel of a network that is trained; 0.85^13 = 0.12
custom_hooks = [
    dict(type='mmkcr.TemperatureDecayHook', initial=1., decay=0.85, interval=10, by_epoch=False)
]
expected = dict(_delete_=True)

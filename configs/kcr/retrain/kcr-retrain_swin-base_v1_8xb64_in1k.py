# KCR-Swin-B with the settings of v1: eta 1 and 100000 landmarks.
# bash tools/dist_train.sh configs/kcr/retrain/kcr-retrain_swin-base_v1_8xb64_in1k.py 8
# Not run.
_base_ = './kcr-retrain_swin-base_8xb64_in1k.py'

structure = 'work_dirs/kcr-search_swin-base_v1_8xb64_in1k-100/slim/structure.json'
compression = dict(structure=structure, regularizers=dict(kcr=dict(weight=1.)))
del structure
custom_hooks = [
    dict(type='EMAHook', momentum=4e-5, priority='ABOVE_NORMAL'),
    dict(type='mmkcr.WarmupSwitchHook', begin=90),
    dict(type='mmkcr.NystromRefreshHook', interval=30, landmarks=100000),
]

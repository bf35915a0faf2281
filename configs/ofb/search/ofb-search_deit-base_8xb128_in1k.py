# OFB on DeiT-B down to 8.7G MACs: importance and sparsity in one search that prunes as it goes.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_deit-base_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-search_deit-base_8700m_8xb128_in1k
# python tools/slim.py configs/ofb/search/ofb-search_deit-base_8xb128_in1k.py \
#     work_dirs/ofb-search_deit-base_8700m_8xb128_in1k/epoch_200.pth \
#     --out work_dirs/ofb-search_deit-base_8700m_8xb128_in1k/slim
# Another size: `--cfg-options compression.target=3.6G` and another folder, as in the header of
# configs/ofb/retrain/ofb-retrain_deit-base_8700m_8xb128_in1k.py.
# Not run. Reported sizes are in the configs of the retraining.
_base_ = './ofb-search_deit-small_8xb128_in1k.py'

model = dict(backbone=dict(arch='deit-base'), head=dict(in_channels=768))
compression = dict(target='8.7G', wrapper=dict(reconstruction=dict(in_channels=768)))
# 200 epochs with 20 of warm-up
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=20, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=180, eta_min=1e-5, by_epoch=True, begin=20, end=200,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=200)
custom_hooks = [
    dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
         share=0.1),
    dict(type='mmkcr.LinearScheduleHook', attribute='mask_ratio', start=0.01, end=0.25),
    dict(type='mmkcr.ProgressivePruningHook', eta=0.2, share=0.5),
]
# the pretrained dense model
load_from = 'https://mmassets.onedl.ai/mmclassification/v0/deit/' \
    'deit-base_pt-16xb64_in1k_20220216-db63c16c.pth'

# KCR-Swin-B, the search of v1: CE + 0.2 log(MACs), without the KCR term.
# bash tools/dist_train.sh configs/kcr/search/kcr-search_swin-base_v1_8xb64_in1k-100.py 8
# python tools/slim.py configs/kcr/search/kcr-search_swin-base_v1_8xb64_in1k-100.py \
#     work_dirs/kcr-search_swin-base_v1_8xb64_in1k-100/epoch_200.pth --target-macs 12.6G
# Not run.
_base_ = './kcr-search_swin-base_8xb64_in1k-100.py'

compression = dict(regularizers=dict(_delete_=True), hooks=[])
custom_hooks = [
    dict(type='mmkcr.TemperatureDecayHook', initial=4.5, decay=0.95, minimum=1e-4),
    dict(type='mmkcr.FeatureTapHook'),
]

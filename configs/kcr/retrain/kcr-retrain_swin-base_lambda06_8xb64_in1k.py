# KCR-Swin-B searched with lambda 0.6 (v2, table 13).
# bash tools/dist_train.sh configs/kcr/retrain/kcr-retrain_swin-base_lambda06_8xb64_in1k.py 8
# Not run. Reported: 46.7 M parameters, 7.8 G MACs, top-1 83.4 %.
_base_ = './kcr-retrain_swin-base_8xb64_in1k.py'

structure = 'work_dirs/kcr-search_swin-base_lambda06_8xb64_in1k-100/slim/structure.json'
model = dict(architecture=dict(backbone=dict(structure=structure)))
del structure

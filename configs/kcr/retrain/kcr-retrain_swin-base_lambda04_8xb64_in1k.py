# KCR-Swin-B searched with lambda 0.4 (v2, table 13).
# bash tools/dist_train.sh configs/kcr/retrain/kcr-retrain_swin-base_lambda04_8xb64_in1k.py 8
# Not run. Reported: 55.4 M parameters, 9.7 G MACs, top-1 84.2 %.
_base_ = './kcr-retrain_swin-base_8xb64_in1k.py'

structure = 'work_dirs/kcr-search_swin-base_lambda04_8xb64_in1k-100/slim/structure.json'
model = dict(architecture=dict(backbone=dict(structure=structure)))
del structure

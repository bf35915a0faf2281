# KCR-Swin-B with eta 0.5 (v2, table 11); kcr-retrain_swin-base_8xb64_in1k.py has eta 0.2.
# bash tools/dist_train.sh configs/kcr/retrain/kcr-retrain_swin-base_eta05_8xb64_in1k.py 8
# Not run. Reported: top-1 84.5 %.
_base_ = './kcr-retrain_swin-base_8xb64_in1k.py'

model = dict(regularizers=dict(kcr=dict(weight=0.5)))

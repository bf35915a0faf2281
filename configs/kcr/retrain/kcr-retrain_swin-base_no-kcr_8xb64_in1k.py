# The ablation of KCR-Swin-B: the same subnet retrained without the KCR term (v2, table 16).
# bash tools/dist_train.sh configs/kcr/retrain/kcr-retrain_swin-base_no-kcr_8xb64_in1k.py 8
# Not run. Reported: top-1 83.1 %.
_base_ = './kcr-retrain_swin-base_8xb64_in1k.py'

compression = dict(regularizers=dict(_delete_=True), hooks=[])

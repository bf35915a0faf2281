# The ablation of KCR-Swin-T: the same subnet retrained without the KCR term (v2, table 16).
# bash tools/dist_train.sh configs/kcr/retrain/kcr-retrain_swin-tiny_no-kcr_8xb64_in1k.py 8
# Not run. The paper does not report it.
_base_ = './kcr-retrain_swin-tiny_8xb64_in1k.py'

model = dict(regularizers=dict(_delete_=True))
custom_hooks = [dict(type='EMAHook', momentum=4e-5, priority='ABOVE_NORMAL')]

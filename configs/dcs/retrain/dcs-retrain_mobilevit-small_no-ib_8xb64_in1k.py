# DCS-MobileViT-S, retrained from scratch: CE alone, EMA (DCS, appendix B).
# bash tools/dist_train.sh configs/dcs/retrain/dcs-retrain_mobilevit-small_no-ib_8xb64_in1k.py 8
# Not run. Reported: top-1 79.9 % (table 3).
_base_ = './dcs-retrain_mobilevit-small_8xb64_in1k.py'

compression = dict(
    feature_layer=None,
    regularizers=None,
    hooks=[dict(type='mmkcr.GateNoiseHook')])

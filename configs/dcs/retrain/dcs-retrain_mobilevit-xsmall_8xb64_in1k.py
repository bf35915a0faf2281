# DCS-MobileViT-XS, retrained from scratch: CE + 50 IB after 90 of 300 epochs, EMA (DCS, appendix
# B).
# bash tools/dist_train.sh configs/dcs/retrain/dcs-retrain_mobilevit-xsmall_8xb64_in1k.py 8
# Not run. Reported: nothing on ImageNet.
_base_ = './dcs-retrain_mobilevit-small_8xb64_in1k.py'

# written by tools/slim.py
structure = 'work_dirs/dcs-search_mobilevit-xsmall_8xb64_in1k-100/slim/structure.json'
model = dict(backbone=dict(arch='x_small'), head=dict(in_channels=384))
compression = dict(structure=structure, regularizers=dict(ib=dict(num_features=384)))
del structure

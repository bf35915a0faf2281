# KCR-Swin-B with lambda 0.8 (v2, table 13); kcr-search_swin-base_8xb64_in1k-100.py has lambda 0.2.
# bash tools/dist_train.sh configs/kcr/search/kcr-search_swin-base_lambda08_8xb64_in1k-100.py 8
# python tools/slim.py configs/kcr/search/kcr-search_swin-base_lambda08_8xb64_in1k-100.py \
#     work_dirs/kcr-search_swin-base_lambda08_8xb64_in1k-100/epoch_200.pth --target-macs 6.0G
# Not run. Reported: 39.5 M parameters, 6.0 G MACs, top-1 82.9 % after the retraining.
_base_ = './kcr-search_swin-base_8xb64_in1k-100.py'

model = dict(price=dict(weight=0.8))

# KCR-Swin-B with lambda 0.6 (v2, table 13); kcr-search_swin-base_8xb64_in1k-100.py has lambda 0.2.
# bash tools/dist_train.sh configs/kcr/search/kcr-search_swin-base_lambda06_8xb64_in1k-100.py 8
# python tools/slim.py configs/kcr/search/kcr-search_swin-base_lambda06_8xb64_in1k-100.py \
#     work_dirs/kcr-search_swin-base_lambda06_8xb64_in1k-100/epoch_200.pth --target-macs 7.8G
# Not run. Reported: 46.7 M parameters, 7.8 G MACs, top-1 83.4 % after the retraining.
_base_ = './kcr-search_swin-base_8xb64_in1k-100.py'

model = dict(price=dict(weight=0.6))

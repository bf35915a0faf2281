# KCR-Swin-B searched with lambda 0.6 (v2, table 13).
# bash tools/dist_train.sh configs/kcr/search/kcr-search_swin-base_8xb64_in1k-100.py 8 \
#     --work-dir work_dirs/kcr-search_swin-base_lambda06_8xb64_in1k-100 \
#     --cfg-options compression.price.weight=0.6
# python tools/slim.py configs/kcr/search/kcr-search_swin-base_8xb64_in1k-100.py \
#     work_dirs/kcr-search_swin-base_lambda06_8xb64_in1k-100/epoch_200.pth --target-macs 7.8G \
#     --out work_dirs/kcr-search_swin-base_lambda06_8xb64_in1k-100/slim
# bash tools/dist_train.sh configs/kcr/retrain/kcr-retrain_swin-base_lambda06_8xb64_in1k.py 8
# Not run. Reported: 46.7 M parameters, 7.8 G MACs, top-1 83.4 %.
_base_ = './kcr-retrain_swin-base_8xb64_in1k.py'

structure = 'work_dirs/kcr-search_swin-base_lambda06_8xb64_in1k-100/slim/structure.json'
compression = dict(structure=structure)
del structure

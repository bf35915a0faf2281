# KCR-Swin-B searched with lambda 0.8 (v2, table 13).
# bash tools/dist_train.sh configs/kcr/search/kcr-search_swin-base_8xb64_in1k-100.py 8 \
#     --work-dir work_dirs/kcr-search_swin-base_lambda08_8xb64_in1k-100 \
#     --cfg-options compression.price.weight=0.8
# python tools/slim.py configs/kcr/search/kcr-search_swin-base_8xb64_in1k-100.py \
#     work_dirs/kcr-search_swin-base_lambda08_8xb64_in1k-100/epoch_200.pth --target-macs 6.0G \
#     --out work_dirs/kcr-search_swin-base_lambda08_8xb64_in1k-100/slim
# bash tools/dist_train.sh configs/kcr/retrain/kcr-retrain_swin-base_lambda08_8xb64_in1k.py 8
# Not run. Reported: 39.5 M parameters, 6.0 G MACs, top-1 82.9 %.
_base_ = './kcr-retrain_swin-base_8xb64_in1k.py'

structure = 'work_dirs/kcr-search_swin-base_lambda08_8xb64_in1k-100/slim/structure.json'
compression = dict(structure=structure)
del structure

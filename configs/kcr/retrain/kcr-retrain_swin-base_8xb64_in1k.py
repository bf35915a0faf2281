# KCR-Swin-B, retrained from scratch: CE + 0.2 KCR after 90 of 300 epochs, EMA (KCR v2).
# bash tools/dist_train.sh configs/kcr/retrain/kcr-retrain_swin-base_8xb64_in1k.py 8
# Not run. Reported: 197.1 hours on one A100, top-1 84.7 %.
#
# Searched with lambda 0.4 and slimmed to 9.7G (0.6: 7.8G, 0.8: 6.0G; v2, table 13):
# RUN=work_dirs/kcr-search_swin-base_lambda04_8xb64_in1k-100
# bash tools/dist_train.sh configs/kcr/search/kcr-search_swin-base_8xb64_in1k-100.py 8 \
#     --work-dir $RUN --cfg-options compression.price.weight=0.4
# python tools/slim.py configs/kcr/search/kcr-search_swin-base_8xb64_in1k-100.py \
#     $RUN/epoch_200.pth --target-macs 9.7G --out $RUN/slim
# bash tools/dist_train.sh configs/kcr/retrain/kcr-retrain_swin-base_8xb64_in1k.py 8 \
#     --work-dir work_dirs/kcr-retrain_swin-base_lambda04_8xb64_in1k \
#     --cfg-options compression.structure=$RUN/slim/structure.json
_base_ = './kcr-retrain_swin-tiny_8xb64_in1k.py'

# written by tools/slim.py
structure = 'work_dirs/kcr-search_swin-base_8xb64_in1k-100/slim/structure.json'
# the host's stochastic depth
model = dict(backbone=dict(arch='base', drop_path_rate=0.5), head=dict(in_channels=1024))
compression = dict(structure=structure, regularizers=dict(kcr=dict(num_features=1024)))
del structure

# KCR-Swin-B, the search of v2: CE + 0.2 KCR + 0.2 log(MACs) on 100 classes of ImageNet.
# bash tools/dist_train.sh configs/kcr/search/kcr-search_swin-base_8xb64_in1k-100.py 8
# python tools/slim.py configs/kcr/search/kcr-search_swin-base_8xb64_in1k-100.py \
#     work_dirs/kcr-search_swin-base_8xb64_in1k-100/epoch_200.pth --target-macs 12.6G
# Not run. Reported: 13.3 hours on one A100, a subnet of 12.6 G MACs.
_base_ = './kcr-search_swin-tiny_8xb64_in1k-100.py'

# the host's stochastic depth
model = dict(backbone=dict(arch='base', drop_path_rate=0.5), head=dict(in_channels=1024))
compression = dict(regularizers=dict(kcr=dict(num_features=1024)))

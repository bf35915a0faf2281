# KCR-Swin-T, the search of v2: CE + 0.2 KCR + 0.2 log(MACs) on 100 classes of ImageNet.
# bash tools/dist_train.sh configs/kcr/search/kcr-search_swin-tiny_8xb64_in1k-100.py 8
# python tools/slim.py configs/kcr/search/kcr-search_swin-tiny_8xb64_in1k-100.py \
#     work_dirs/kcr-search_swin-tiny_8xb64_in1k-100/epoch_200.pth --target-macs 3.9G
# Not run. Reported: 7.3 hours on one A100, a subnet of 3.9 G MACs.
_base_ = [
    '../../_base_/models/kcr_swin-tiny.py',
    '../../_base_/datasets/imagenet100_bs64_kc.py',
    '../../_base_/schedules/kcr_search_bs512_200e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_search.py',
]

model = dict(head=dict(num_classes=100))
compression = dict(
    sites='own',
    regularizers=dict(kcr=dict(num_features=768)),
    # cost='paper' is the paper's own cost, which knows neither tokens nor hidden width
    price=dict(cost='macs'))

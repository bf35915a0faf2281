# DCS-MobileViT-XS, the search: CE + 0.2 log(MACs) on 100 classes of ImageNet.
# bash tools/dist_train.sh configs/dcs/search/dcs-search_mobilevit-xsmall_8xb64_in1k-100.py 8
# python tools/slim.py configs/dcs/search/dcs-search_mobilevit-xsmall_8xb64_in1k-100.py \
#     work_dirs/dcs-search_mobilevit-xsmall_8xb64_in1k-100/epoch_200.pth --target-macs 0.72G
# Not run. The paper gives no number of the search.
_base_ = './dcs-search_mobilevit-small_8xb64_in1k-100.py'

model = dict(backbone=dict(arch='x_small'), head=dict(in_channels=384))

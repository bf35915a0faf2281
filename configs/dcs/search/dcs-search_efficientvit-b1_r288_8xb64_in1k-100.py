# DCS-EfficientViT-B1 at 288 px, the search: CE + 0.2 log(MACs) on 100 classes of ImageNet.
# bash tools/dist_train.sh configs/dcs/search/dcs-search_efficientvit-b1_r288_8xb64_in1k-100.py 8
# python tools/slim.py configs/dcs/search/dcs-search_efficientvit-b1_r288_8xb64_in1k-100.py \
#     work_dirs/dcs-search_efficientvit-b1_r288_8xb64_in1k-100/epoch_200.pth --target-macs 0.72G
# Not run. The paper gives no number of the search.
_base_ = [
    '../../_base_/models/dcs_efficientvit-b1.py',
    '../../_base_/datasets/imagenet100_bs64_288.py',
    '../../_base_/schedules/dcs_search_bs512_200e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/dcs_search.py',
]

model = dict(backbone=dict(img_size=288), head=dict(num_classes=100))
compression = dict(
    sites='own',
    # logs what the masks leave open
    regularizers=dict(mask=dict(type='mmkcr.MaskPrice', weight=0.)),
    # cost='paper' is the paper's own cost
    price=dict(cost='macs'))

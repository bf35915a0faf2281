# DCS-EfficientViT-B1 at 288 px, the search: CE + 0.2 log(MACs) on 100 classes of ImageNet.
# bash tools/dist_train.sh configs/dcs/search/dcs-search_efficientvit-b1_r288_8xb64_in1k-100.py 8
# python tools/slim.py configs/dcs/search/dcs-search_efficientvit-b1_r288_8xb64_in1k-100.py \
#     work_dirs/dcs-search_efficientvit-b1_r288_8xb64_in1k-100/epoch_200.pth --target-macs 0.72G
# Not run. The paper gives no number of the search.
_base_ = [
    '../../_base_/models/efficientvit-b1.py',
    '../../_base_/datasets/imagenet_bs64_288.py',
    '../../_base_/schedules/kcr_search_bs512_200e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/dcs_search.py',
]

# the search set of 100 classes (imagenet100_bs64.py) at 288 px
subset = dict(_delete_=True, type='mmkcr.ClassSubset', num_classes=100, seed=0)
data_preprocessor = dict(num_classes=100)
train_dataloader = dict(dataset=dict(subset, dataset={{_base_.train_dataloader.dataset}}))
val_dataloader = dict(dataset=dict(subset, dataset={{_base_.val_dataloader.dataset}}))
test_dataloader = val_dataloader
del subset
model = dict(
    backbone=dict(type='mmkcr.DCSEfficientViT', local=True, img_size=288),
    head=dict(num_classes=100))
compression = dict(
    sites='own',
    # cost='paper' is the paper's own cost
    price=dict(cost='macs'))
custom_hooks = [dict(type='mmkcr.TemperatureDecayHook', initial=4.5, decay=0.95, minimum=1e-4)]

# KCR-ViT-S, the search of v2: CE + 0.2 KCR + 0.2 log(MACs) on 100 classes of ImageNet.
# bash tools/dist_train.sh configs/kcr/search/kcr-search_vit-small_8xb64_in1k-100.py 8
# python tools/slim.py configs/kcr/search/kcr-search_vit-small_8xb64_in1k-100.py \
#     work_dirs/kcr-search_vit-small_8xb64_in1k-100/epoch_200.pth --target-macs 4.15G
# Not run. Reported: 6.03 hours on one A100, a subnet of 3.8 G MACs
# (3.8 G as reported, which leaves out the attention products).
_base_ = './kcr-search_vit-base_8xb64_in1k-100.py'

# ViT-S is mmpretrain's 'deit-small' ('small' is another model)
model = dict(backbone=dict(arch='deit-small'), head=dict(in_channels=384))
compression = dict(regularizers=dict(kcr=dict(num_features=384)))

# DCS-MobileViT-S, the search: CE + 0.2 log(MACs) on 100 classes of ImageNet.
# bash tools/dist_train.sh configs/dcs/search/dcs-search_mobilevit-small_8xb64_in1k-100.py 8
# python tools/slim.py configs/dcs/search/dcs-search_mobilevit-small_8xb64_in1k-100.py \
#     work_dirs/dcs-search_mobilevit-small_8xb64_in1k-100/epoch_200.pth --target-macs 1.38G
# The paper reports 1.2 G, which is out of reach: 1.32 G with the fewest channels. 1.38 G has the
# reported parameters.
# Not run. The paper gives no number of the search.
_base_ = [
    'mmpretrain::_base_/models/mobilevit/mobilevit_s.py',
    '../../_base_/datasets/imagenet100_bs64.py',
    '../../_base_/schedules/kcr_search_bs512_200e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/dcs_search.py',
]

# at 224 px: the token counts of the paper's table 4 (196, 49, 16) are those of 224 px
model = dict(backbone=dict(type='mmkcr.DCSMobileViT'), head=dict(num_classes=100))
compression = dict(
    sites='own',
    # cost='paper' is the paper's own cost
    price=dict(cost='macs'))
custom_hooks = [dict(type='mmkcr.TemperatureDecayHook', initial=4.5, decay=0.95, minimum=1e-4)]
# as the host's MobileViT: BGR over 255
data_preprocessor = dict(mean=[0., 0., 0.], std=[255., 255., 255.], to_rgb=False)

# Retrains the network with replaced heads and selected channels, from the inherited weights.
# python tools/train.py configs/dwconv/digits/kcr-dwconv-retrain_vit-octo_1xb64_digits.py
_base_ = './dwconv-replace_vit-octo_1xb64_digits.py'

slim_dir = 'work_dirs/kcr-dwconv-search_vit-octo_1xb64_digits/slim'
model = dict(
    backbone=dict(
        type='mmkcr.KCRDWConvVisionTransformer', structure=f'{slim_dir}/structure.json'))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir

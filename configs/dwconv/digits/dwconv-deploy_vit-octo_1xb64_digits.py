# The replaced network as an ordinary classifier: for testing, fine-tuning and export.
# python tools/test.py configs/dwconv/digits/dwconv-deploy_vit-octo_1xb64_digits.py \
#     work_dirs/dwconv-replace_vit-octo_1xb64_digits/epoch_8.pth
_base_ = './dwconv-dense_vit-octo_1xb64_digits.py'

model = dict(
    backbone=dict(structure='work_dirs/dwconv-dense_vit-octo_1xb64_digits/slim/structure.json'))
load_from = None

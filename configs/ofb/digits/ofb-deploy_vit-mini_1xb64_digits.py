# The subnet as an ordinary classifier: for testing, fine-tuning and export.
# python tools/test.py configs/ofb/digits/ofb-deploy_vit-mini_1xb64_digits.py \
#     work_dirs/ofb-retrain_vit-mini_1xb64_digits/epoch_24.pth
_base_ = './ofb-dense_vit-mini_1xb64_digits.py'

model = dict(
    backbone=dict(structure='work_dirs/ofb-search_vit-mini_1xb64_digits/slim/structure.json'))

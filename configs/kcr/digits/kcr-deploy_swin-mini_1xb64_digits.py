# The subnet as an ordinary classifier: for testing, fine-tuning and export.
# python tools/test.py configs/kcr/digits/kcr-deploy_swin-mini_1xb64_digits.py \
#     work_dirs/kcr-retrain_swin-mini_1xb32_digits/epoch_32.pth
_base_ = './kcr-dense_swin-mini_1xb64_digits.py'

model = dict(
    backbone=dict(structure='work_dirs/kcr-search_swin-mini_1xb64_digits/slim/structure.json'))

# The subnet as an ordinary classifier: for testing, fine-tuning and export.
# python tools/test.py configs/dcs/digits/dcs-deploy_mobilevit-mini_1xb64_digits.py \
#     work_dirs/dcs-retrain_mobilevit-mini_no-ib_1xb64_digits/epoch_32.pth
_base_ = './dcs-dense_mobilevit-mini_1xb64_digits.py'

model = dict(
    backbone=dict(structure='work_dirs/dcs-search_mobilevit-mini_1xb64_digits/slim/structure.json'))

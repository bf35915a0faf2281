# The ablation: retrains the subnet on the digits without the KCR term.
# python tools/train.py configs/kcr/digits/kcr-retrain_vit-mini_no-kcr_1xb64_digits.py
_base_ = './kcr-retrain_vit-mini_1xb64_digits.py'

compression = dict(regularizers=dict(_delete_=True))
custom_hooks = []

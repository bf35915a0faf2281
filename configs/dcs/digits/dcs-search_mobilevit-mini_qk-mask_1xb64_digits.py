# DCS-QK-Mask: one mask for queries and another for keys.
# python tools/train.py configs/dcs/digits/dcs-search_mobilevit-mini_qk-mask_1xb64_digits.py
# python tools/slim.py configs/dcs/digits/dcs-search_mobilevit-mini_qk-mask_1xb64_digits.py \
#     work_dirs/dcs-search_mobilevit-mini_qk-mask_1xb64_digits/epoch_16.pth --target-macs 0.8
_base_ = './dcs-search_mobilevit-mini_1xb64_digits.py'

model = dict(architecture=dict(backbone=dict(qk_mask=dict(type='mmkcr.QKMask', separate=True))))

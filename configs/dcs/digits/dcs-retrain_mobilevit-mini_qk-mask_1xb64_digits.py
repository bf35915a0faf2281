# DCS-QK-Mask: one mask for queries and another for keys.
# python tools/train.py configs/dcs/digits/dcs-retrain_mobilevit-mini_qk-mask_1xb64_digits.py
_base_ = './dcs-retrain_mobilevit-mini_no-ib_1xb64_digits.py'

slim_dir = 'work_dirs/dcs-search_mobilevit-mini_qk-mask_1xb64_digits/slim'
model = dict(
    architecture=dict(
        backbone=dict(
            structure=f'{slim_dir}/structure.json',
            qk_mask=dict(type='mmkcr.QKMask', separate=True))))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir

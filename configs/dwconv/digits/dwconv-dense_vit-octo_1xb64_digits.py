# The first fine-tuning, with attention, on all ten digits.
# python tools/train.py configs/dwconv/digits/dwconv-pretrain_vit-octo_1xb64_digits-five.py
# python tools/train.py configs/dwconv/digits/dwconv-dense_vit-octo_1xb64_digits.py
_base_ = [
    '../../_base_/models/dwconv_vit-octo.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/dwconv_digits_bs64_16e.py',
    '../../_base_/default_runtime.py',
]

load_from = 'work_dirs/dwconv-pretrain_vit-octo_1xb64_digits-five/epoch_48.pth'

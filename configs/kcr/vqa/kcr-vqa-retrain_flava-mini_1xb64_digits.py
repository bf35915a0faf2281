# The subnet retrained on questions about digit scenes from inherited weights, with the KCR term.
# python tools/train.py configs/kcr/vqa/kcr-vqa-retrain_flava-mini_1xb64_digits.py
_base_ = [
    '../../_base_/models/flava-mini_vqa.py',
    '../../_base_/datasets/vqa-digits_bs64.py',
    '../../_base_/schedules/vqa-digits_bs64_12e.py',
    '../../_base_/compressed_runtime.py',
    '../../_base_/methods/kcr_retrain.py',
]

model = dict(answers={{_base_.answers}})
slim_dir = 'work_dirs/kcr-vqa-search_flava-mini_1xb64_digits/slim'
compression = dict(structure=f'{slim_dir}/structure.json', weights=f'{slim_dir}/subnet.pth')
del slim_dir

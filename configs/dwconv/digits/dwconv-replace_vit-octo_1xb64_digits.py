# Replaces the four blocks of lowest score, then the second fine-tuning.
# python tools/analysis_tools/score_heads.py \
#     configs/dwconv/digits/dwconv-dense_vit-octo_1xb64_digits.py \
#     work_dirs/dwconv-dense_vit-octo_1xb64_digits/epoch_16.pth --replace 4
# python tools/train.py configs/dwconv/digits/dwconv-replace_vit-octo_1xb64_digits.py
_base_ = './dwconv-dense_vit-octo_1xb64_digits.py'

slim_dir = 'work_dirs/dwconv-dense_vit-octo_1xb64_digits/slim'
model = dict(backbone=dict(structure=f'{slim_dir}/structure.json'))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir
# half of the epochs of the first fine-tuning (section 4.2.2)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=7, eta_min=1e-5, by_epoch=True, begin=1,
         end=8, convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=8)

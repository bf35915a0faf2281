# Replaces the 6 blocks of lowest score of DINOv2 ViT-B/14, then the second fine-tuning. Not run.
# python tools/analysis_tools/score_heads.py \
#     configs/dwconv/imagenet/dwconv-dense_dinov2-vit-base_8xb64_in1k.py \
#     work_dirs/dwconv-dense_dinov2-vit-base_8xb64_in1k/epoch_20.pth --replace 6
# bash tools/dist_train.sh configs/dwconv/imagenet/dwconv-replace_dinov2-vit-base_8xb64_in1k.py 8
_base_ = './dwconv-dense_dinov2-vit-base_8xb64_in1k.py'

slim_dir = 'work_dirs/dwconv-dense_dinov2-vit-base_8xb64_in1k/slim'
model = dict(
    backbone=dict(structure=f'{slim_dir}/structure.json', init_cfg=None))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir
# half of the epochs of the first fine-tuning (section 4.2.2)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-2, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=9, eta_min_ratio=1e-2, by_epoch=True, begin=1, end=10,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=10)

# Replaces the 12 blocks of lowest score of MAE ViT-L/16, then the second fine-tuning. Not run.
# python tools/analysis_tools/score_heads.py \
#     configs/dwconv/segmentation/dwconv-fcn_mae-vit-large_dense_8xb2_coco-stuff.py \
#     work_dirs/dwconv-fcn_mae-vit-large_dense_8xb2_coco-stuff/iter_80000.pth --replace 12
# bash tools/dist_train.sh \
#     configs/dwconv/segmentation/dwconv-fcn_mae-vit-large_replace_8xb2_coco-stuff.py 8
_base_ = [
    '../../_base_/models/dwconv_fcn_mae-vit-large.py',
    '../../_base_/datasets/coco-stuff164k_bs16_336.py',
    '../../_base_/schedules/dwconv_segmentation_bs16_40k.py',
    '../../_base_/segmentation_runtime.py',
]

slim_dir = 'work_dirs/dwconv-fcn_mae-vit-large_dense_8xb2_coco-stuff/slim'
model = dict(
    backbone=dict(structure=f'{slim_dir}/structure.json', init_cfg=None))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir

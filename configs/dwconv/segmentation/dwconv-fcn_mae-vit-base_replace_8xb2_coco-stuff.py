# Replaces the 6 blocks of lowest score of MAE ViT-B/16, then the second fine-tuning. Not run.
# python tools/analysis_tools/score_heads.py \
#     configs/dwconv/segmentation/dwconv-fcn_mae-vit-base_dense_8xb2_coco-stuff.py \
#     work_dirs/dwconv-fcn_mae-vit-base_dense_8xb2_coco-stuff/iter_80000.pth --replace 6
# bash tools/dist_train.sh \
#     configs/dwconv/segmentation/dwconv-fcn_mae-vit-base_replace_8xb2_coco-stuff.py 8
_base_ = './dwconv-fcn_mae-vit-base_dense_8xb2_coco-stuff.py'

slim_dir = 'work_dirs/dwconv-fcn_mae-vit-base_dense_8xb2_coco-stuff/slim'
model = dict(
    backbone=dict(structure=f'{slim_dir}/structure.json', init_cfg=None))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir
# half of the iterations of the first fine-tuning
param_scheduler = _base_.param_scheduler
param_scheduler[1].end = 40000
train_cfg = dict(max_iters=40000)

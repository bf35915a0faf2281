# The first fine-tuning with attention: MAE ViT-L/16 on COCO-Stuff. Not run.
# bash tools/dist_train.sh \
#     configs/dwconv/segmentation/dwconv-fcn_mae-vit-large_dense_8xb2_coco-stuff.py 8
_base_ = [
    '../../_base_/models/dwconv_fcn_mae-vit-large.py',
    '../../_base_/datasets/coco-stuff164k_bs16_336.py',
    '../../_base_/schedules/dwconv_segmentation_bs16_80k.py',
    '../../_base_/segmentation_runtime.py',
]

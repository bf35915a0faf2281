# The first fine-tuning with attention: DINOv2 ViT-L/14 on ADE20K. Not run.
# bash tools/dist_train.sh \
#     configs/dwconv/segmentation/dwconv-fcn_dinov2-vit-large_dense_8xb2_ade20k.py 8
_base_ = [
    '../../_base_/models/dwconv_fcn_dinov2-vit-large.py',
    '../../_base_/datasets/ade20k_bs16_336.py',
    '../../_base_/schedules/dwconv_segmentation_bs16_80k.py',
    '../../_base_/segmentation_runtime.py',
]

model = dict(decode_head=dict(num_classes=150))

# DSP on COCO-Stuff: learns which 12 of the 24 blocks of DINOv2 ViT-L/14 to replace, then the static
# network (end-to-end). Not run. Reported: mIoU 64.15 %.
# bash tools/dist_train.sh \
#     configs/dwconv/segmentation/dwconv-fcn_dinov2-vit-large_search_8xb2_coco-stuff.py 8
# RUN=work_dirs/dwconv-fcn_dinov2-vit-large_search_8xb2_coco-stuff
# python tools/slim.py \
#     configs/dwconv/segmentation/dwconv-fcn_dinov2-vit-large_search_8xb2_coco-stuff.py \
#     $RUN/iter_80000.pth
# Two-stage, 17 blocks, single heads, ADE20K, other networks: ../README.md.
_base_ = [
    './dwconv-fcn_dinov2-vit-large_dense_8xb2_coco-stuff.py',
    '../../_base_/methods/dwconv_search.py',
]

model = dict(backbone=dict(init_cfg=None))
# the temperature has fallen after three quarters of the run
compression = dict(sites='own', gates=dict(count=12))
load_from = 'work_dirs/dwconv-fcn_dinov2-vit-large_dense_8xb2_coco-stuff/iter_80000.pth'

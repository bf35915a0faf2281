# Cascade Mask R-CNN with the KCR-Swin-B that was searched on COCO, from what the search left of it.
# bash tools/dist_train.sh \
#     configs/kcr/detection/kcr-cascade-mask-rcnn_swin-base_slim_8xb2_coco.py 8
# Not run. The paper has no such row.
_base_ = './kcr-cascade-mask-rcnn_swin-base_dense_8xb2_coco.py'

slim_dir = 'work_dirs/kcr-cascade-mask-rcnn_swin-base_search_8xb2_coco/slim'
model = dict(backbone=dict(structure=f'{slim_dir}/structure.json', init_cfg=None))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir

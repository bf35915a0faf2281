# UPerNet with the KCR-Swin-B that was searched on ADE20K, from what the search left of it.
# bash tools/dist_train.sh configs/kcr/segmentation/kcr-upernet_swin-base_slim_8xb2_ade20k.py 8
# Not run. The paper has no such row.
_base_ = './kcr-upernet_swin-base_dense_8xb2_ade20k.py'

slim_dir = 'work_dirs/kcr-upernet_swin-base_search_8xb2_ade20k/slim'
model = dict(backbone=dict(structure=f'{slim_dir}/structure.json', init_cfg=None))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir

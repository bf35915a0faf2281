# UPerNet with the subnet of the search on the digit scenes, from what the search left of it.
# python tools/train.py configs/ofb/segmentation/ofb-upernet_swin-mini_slim_1xb8_digit-scenes.py
_base_ = [
    '../../_base_/models/ofb_upernet_swin-mini.py',
    '../../_base_/datasets/digit_scenes_semantic.py',
    '../../_base_/schedules/digit-scenes_bs8_600i.py',
    '../../_base_/segmentation_runtime.py',
]

slim_dir = 'work_dirs/ofb-upernet_swin-mini_search_1xb8_digit-scenes/slim'
model = dict(backbone=dict(structure=f'{slim_dir}/structure.json'))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir

# mIoU of one run, seed 0 (README.md); the tolerance is a guess, not measured. Chance gives 5.
expected = dict(mIoU=(16.9, 6.))

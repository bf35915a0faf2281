# SETR-naive with the dense backbone on the digit scenes, from the classifier's backbone.
# python tools/train.py configs/ofb/digits/ofb-dense_vit-mini_p16_1xb64_digits.py
# python tools/train.py configs/ofb/segmentation/ofb-setr-naive_vit-mini_dense_1xb8_digit-scenes.py
_base_ = [
    '../../_base_/models/ofb_setr-naive_vit-mini.py',
    '../../_base_/datasets/digit_scenes_semantic.py',
    '../../_base_/schedules/digit-scenes_bs8_900i.py',
    '../../_base_/segmentation_runtime.py',
]

checkpoint = 'work_dirs/ofb-dense_vit-mini_p16_1xb64_digits/epoch_48.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
del checkpoint
# a ViT's rate on the scenes, and its positions
optim_wrapper = dict(
    optimizer=dict(lr=2e-3),
    paramwise_cfg=dict(custom_keys={'pos_embed': dict(lr_mult=20., decay_mult=0.)}))

# Mean mIoU of seeds 0 to 2 and three standard deviations (../README.md). Chance gives 5.
expected = dict(mIoU=(33.2, 6.6))

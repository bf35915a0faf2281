# The search on the digit scenes themselves, then the slimming to 70 % of the backbone's MACs.
# python tools/train.py configs/kcr/detection/kcr-mask-rcnn_swin-mini_search_1xb8_digit-scenes.py
# python tools/slim.py configs/kcr/detection/kcr-mask-rcnn_swin-mini_search_1xb8_digit-scenes.py \
#     work_dirs/kcr-mask-rcnn_swin-mini_search_1xb8_digit-scenes/epoch_2.pth \
#     --target-macs 0.7 --divisor 8
_base_ = [
    '../../_base_/models/kcr_mask-rcnn_swin-mini.py',
    '../../_base_/datasets/digit_scenes_instance.py',
    '../../_base_/schedules/kcr_digit-scenes-search_bs8_2e.py',
    '../../_base_/detection_runtime.py',
    '../../_base_/methods/kcr_search.py',
]

checkpoint = 'work_dirs/kcr-dense_swin-mini_anywhere_1xb64_digits/epoch_48.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
compression = dict(
    # loop and hooks are those of the schedule
    sites='own', loop='plain', hooks=[],
    part='backbone',
    input_shape=(3, 128, 128),
    regularizers=dict(kcr=dict(num_features=96)),
    target=0.7,
    # lambda x |log(MACs / target)|: it stops to pull at the target, so lambda can be large
    price=dict(weight=0.3))
del checkpoint

# SSDLite with the dense MobileViT on the digit scenes, from the classifier's backbone.
# python tools/train.py configs/dcs/digits/dcs-dense_mobilevit-mini_1xb64_digits.py
# python tools/train.py configs/dcs/detection/dcs-ssdlite_mobilevit-mini_dense_1xb8_digit-scenes.py
_base_ = [
    '../../_base_/models/dcs_ssdlite_mobilevit-mini.py',
    '../../_base_/datasets/digit_scenes_instance.py',
    '../../_base_/schedules/digit-scenes_bs8_12e.py',
    '../../_base_/detection_runtime.py',
]

custom_imports = dict(
    imports=['mmkcr', 'mmkcr.models.heads.ssd_head'], allow_failed_imports=False)
checkpoint = 'work_dirs/dcs-dense_mobilevit-mini_1xb64_digits/epoch_48.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
del checkpoint

val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator

# Mean of several seeds and tolerance (../README.md); boxes found by chance give 0.
expected = {'coco/bbox_mAP': (0.3, 0.1)}

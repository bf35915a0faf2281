# COCO with boxes and masks for 8 GPUs with 2 images each. Short side 480 to 800, long side at most
# 1333; half of the images are cropped before, as in Liu et al. (2021a), whose setting KCR v2 (D.4)
# follows.
_base_ = 'mmdet::_base_/datasets/coco_instance.py'

resize = dict(
    type='RandomChoiceResize',
    scales=[(480, 1333), (512, 1333), (544, 1333), (576, 1333), (608, 1333), (640, 1333),
            (672, 1333), (704, 1333), (736, 1333), (768, 1333), (800, 1333)],
    keep_ratio=True)
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='RandomChoice',
        transforms=[[resize],
                    [
                        dict(
                            type='RandomChoiceResize',
                            scales=[(400, 1333), (500, 1333), (600, 1333)],
                            keep_ratio=True),
                        dict(
                            type='RandomCrop',
                            crop_type='absolute_range',
                            crop_size=(384, 600),
                            allow_negative_crop=True), resize
                    ]]),
    dict(type='PackDetInputs')
]
del resize
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

# Mask R-CNN with the slim EfficientViT on the digit scenes, from the retrained classifier's
# backbone.
# python tools/train.py configs/dcs/digits/dcs-retrain_efficientvit-mini_no-ib_1xb64_digits.py
# python tools/train.py configs/dcs/detection/dcs-mask-rcnn_efficientvit-mini_1xb8_digit-scenes.py
_base_ = './dcs-mask-rcnn_efficientvit-mini_dense_1xb8_digit-scenes.py'

structure = 'work_dirs/dcs-search_efficientvit-mini_1xb64_digits/slim/structure.json'
checkpoint = 'work_dirs/dcs-retrain_efficientvit-mini_no-ib_1xb64_digits/epoch_32.pth'
model = dict(backbone=dict(structure=structure, init_cfg=dict(checkpoint=checkpoint)))
del structure, checkpoint

# Mean of several seeds and tolerance (../README.md); digits found by chance give 0.
expected = {'coco/bbox_mAP': (0.73, 0.06), 'coco/segm_mAP': (0.6, 0.06)}

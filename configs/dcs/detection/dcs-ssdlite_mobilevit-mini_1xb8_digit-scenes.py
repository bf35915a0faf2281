# SSDLite with the slim MobileViT on the digit scenes, from the retrained classifier's backbone.
# python tools/train.py configs/dcs/digits/dcs-retrain_mobilevit-mini_no-ib_1xb64_digits.py
# python tools/train.py configs/dcs/detection/dcs-ssdlite_mobilevit-mini_1xb8_digit-scenes.py
_base_ = './dcs-ssdlite_mobilevit-mini_dense_1xb8_digit-scenes.py'

structure = 'work_dirs/dcs-search_mobilevit-mini_1xb64_digits/slim/structure.json'
checkpoint = 'work_dirs/dcs-retrain_mobilevit-mini_no-ib_1xb64_digits/epoch_32.pth'
model = dict(backbone=dict(structure=structure, init_cfg=dict(checkpoint=checkpoint)))
del structure, checkpoint

# Mean of several seeds and tolerance (../README.md); boxes found by chance give 0.
expected = {'coco/bbox_mAP': (0.23, 0.08)}

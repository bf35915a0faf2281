# UPerNet with the KCR-Swin-B of ImageNet on ADE20K (KCR v2, D.3).
# bash tools/dist_train.sh configs/kcr/segmentation/kcr-upernet_swin-base_8xb2_ade20k.py 8
# bash tools/dist_test.sh configs/kcr/segmentation/kcr-upernet_swin-base_8xb2_ade20k.py \
#     work_dirs/kcr-upernet_swin-base_8xb2_ade20k/iter_160000.pth 8 --tta
# Not run. Reported: 52.4 % mIoU; the paper names neither the data of the pre-training nor the crop.
_base_ = './kcr-upernet_swin-base_dense_8xb2_ade20k.py'

structure = 'work_dirs/kcr-search_swin-base_8xb64_in1k-100/slim/structure.json'
checkpoint = 'work_dirs/kcr-retrain_swin-base_8xb64_in1k/epoch_300.pth'
model = dict(backbone=dict(structure=structure, init_cfg=dict(checkpoint=checkpoint)))
del structure, checkpoint

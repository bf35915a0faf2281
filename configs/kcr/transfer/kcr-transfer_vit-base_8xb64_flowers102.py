# KCR-ViT-B fine-tuned on Oxford Flowers-102 (KCR v2, D.1).
# bash tools/dist_train.sh configs/kcr/transfer/kcr-transfer_vit-base_8xb64_flowers102.py 8
# Not run. Reported: top-1 98.2 %.
_base_ = [
    '../../_base_/models/kcr_vit-base.py',
    '../../_base_/datasets/flowers102_bs64.py',
    '../../_base_/schedules/transfer_bs512_adam_50e.py',
    '../../_base_/default_runtime.py',
]

structure = 'work_dirs/kcr-search_vit-base_8xb64_in1k-100/slim/structure.json'
checkpoint = 'work_dirs/kcr-retrain_vit-base_8xb64_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        structure=structure,
        init_cfg=dict(
            _delete_=True, type='Pretrained', checkpoint=checkpoint, prefix='backbone.')),
    head=dict(num_classes=102))
del structure, checkpoint

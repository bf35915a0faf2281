# The 1.7 G subnet of DeiT-S, fine-tuned on CIFAR-10 (OFB, table 4).
# bash tools/dist_train.sh configs/ofb/transfer/ofb-transfer_deit-small_1700m_8xb96_cifar10.py 8
# Not run. Reported: top-1 98.7 %.
_base_ = [
    '../../_base_/models/ofb_deit-small.py',
    '../../_base_/datasets/cifar10_bs96_224.py',
    '../../_base_/default_runtime.py',
]

structure = 'work_dirs/ofb-search_deit-small_1700m_8xb128_in1k/slim/structure.json'
checkpoint = 'work_dirs/ofb-retrain_deit-small_1700m_8xb128_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        structure=structure,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint, prefix='backbone.')),
    head=dict(num_classes=10))
del structure, checkpoint

# As in DeiT's appendix. lr is 0.01 for 8 x 96 = 768 images; with --auto-scale-lr:
# 0.01 x images / 768.
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=1e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=995, eta_min=1e-5, by_epoch=True, begin=5, end=1000,
         convert_to_iter_based=True)
]
train_cfg = dict(by_epoch=True, max_epochs=1000, val_interval=10)
val_cfg = test_cfg = dict()
auto_scale_lr = dict(base_batch_size=768)

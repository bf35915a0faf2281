# The 1.7 G subnet of DeiT-S, fine-tuned on CIFAR-100 (OFB, table 4).
# bash tools/dist_train.sh configs/ofb/transfer/ofb-transfer_deit-small_1700m_8xb96_cifar100.py 8
# Not run. Reported: top-1 88.4 %.
_base_ = [
    '../../_base_/models/ofb_deit-small.py',
    '../../_base_/datasets/cifar100_bs96_224.py',
    '../../_base_/schedules/ofb_transfer_bs768_sgd_1000e.py',
    '../../_base_/default_runtime.py',
]

structure = 'work_dirs/ofb-search_deit-small_1700m_8xb128_in1k/slim/structure.json'
checkpoint = 'work_dirs/ofb-retrain_deit-small_1700m_8xb128_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        structure=structure,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint, prefix='backbone.')),
    head=dict(num_classes=100))
del structure, checkpoint

# The 1.7 G subnet of DeiT-S, fine-tuned on CIFAR-100 (OFB, table 4).
# bash tools/dist_train.sh configs/ofb/transfer/ofb-transfer_deit-small_1700m_8xb96_cifar100.py 8
# Not run. Reported: top-1 88.4 %.
_base_ = './ofb-transfer_deit-small_1700m_8xb96_cifar10.py'

dataset_type = 'CIFAR100'
data_preprocessor = dict(num_classes=100)
train_dataloader = dict(dataset=dict(type=dataset_type, data_root='data/cifar100'))
val_dataloader = dict(dataset=dict(type=dataset_type, data_root='data/cifar100/'))
test_dataloader = val_dataloader
model = dict(head=dict(num_classes=100))

# The search set of KCR-Transformer: 100 classes of ImageNet, drawn at random, the same classes
# for training and validation. Random resized crop and flip are those of the host's config.
_base_ = 'mmpretrain::_base_/datasets/imagenet_bs64.py'

data_preprocessor = dict(num_classes=100)
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='mmkcr.ClassSubset',
        num_classes=100,
        seed=0,
        dataset={{_base_.train_dataloader.dataset}}))
val_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='mmkcr.ClassSubset',
        num_classes=100,
        seed=0,
        dataset={{_base_.val_dataloader.dataset}}))
test_dataloader = val_dataloader

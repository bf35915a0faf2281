# The search set of 100 classes (imagenet100_bs64.py) at 288 px.
_base_ = './imagenet_bs64_288.py'

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

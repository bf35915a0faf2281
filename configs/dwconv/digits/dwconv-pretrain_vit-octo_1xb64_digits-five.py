# The stand-in for a foundation model: trained on five of the ten digits, drawn at random.
# python tools/train.py configs/dwconv/digits/dwconv-pretrain_vit-octo_1xb64_digits-five.py
_base_ = [
    '../../_base_/models/dwconv_vit-octo.py',
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/digits_bs64_48e.py',
    '../../_base_/default_runtime.py',
]

model = dict(head=dict(num_classes=5))
data_preprocessor = dict(num_classes=5)
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='mmkcr.ClassSubset',
        num_classes=5,
        dataset={{_base_.train_dataloader.dataset}}))
val_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='mmkcr.ClassSubset',
        num_classes=5,
        dataset={{_base_.val_dataloader.dataset}}))
test_dataloader = val_dataloader

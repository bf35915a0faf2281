# Oxford-IIIT Pet, 37 classes. The transforms are those of the host's ImageNet config.
_base_ = 'mmpretrain::_base_/datasets/imagenet_bs64.py'

data_preprocessor = dict(num_classes=37)
train_dataloader = dict(
    dataset=dict(type='OxfordIIITPet', data_root='data/Oxford-IIIT_Pets', split='trainval'))
val_dataloader = dict(
    dataset=dict(type='OxfordIIITPet', data_root='data/Oxford-IIIT_Pets', split='test'))
val_evaluator = dict(topk=(1, ))
test_dataloader = val_dataloader
test_evaluator = val_evaluator

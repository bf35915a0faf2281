# Oxford Flowers-102, 102 classes. The transforms are those of the host's ImageNet config.
_base_ = 'mmpretrain::_base_/datasets/imagenet_bs64.py'

data_preprocessor = dict(num_classes=102)
train_dataloader = dict(
    dataset=dict(type='Flowers102', data_root='data/Flowers102', split='trainval'))
val_dataloader = dict(
    dataset=dict(type='Flowers102', data_root='data/Flowers102', split='test'))
val_evaluator = dict(topk=(1, ))
test_dataloader = val_dataloader
test_evaluator = val_evaluator

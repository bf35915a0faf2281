# Stanford Cars, 196 classes. The transforms are those of the host's ImageNet config.
_base_ = 'mmpretrain::_base_/datasets/imagenet_bs64.py'

data_preprocessor = dict(num_classes=196)
train_dataloader = dict(
    dataset=dict(type='StanfordCars', data_root='data/Stanford_Cars', split='train'))
val_dataloader = dict(
    dataset=dict(type='StanfordCars', data_root='data/Stanford_Cars', split='test'))
val_evaluator = dict(topk=(1, ))
test_dataloader = val_dataloader
test_evaluator = val_evaluator

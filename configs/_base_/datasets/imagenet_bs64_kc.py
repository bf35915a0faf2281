# ImageNet; every validation also gives the kernel complexity of the validation images' features.
# Needs `mmkcr.FeatureTapHook`.
_base_ = 'mmpretrain::_base_/datasets/imagenet_bs64.py'

val_evaluator = [dict(type='Accuracy', topk=(1, 5)), dict(type='mmkcr.KernelComplexityMetric')]

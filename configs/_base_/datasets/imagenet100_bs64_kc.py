# 100 classes of ImageNet; every validation also gives the kernel complexity of the validation
# images' features. Needs `mmkcr.FeatureTapHook`.
_base_ = './imagenet100_bs64.py'

val_evaluator = [dict(type='Accuracy', topk=(1, 5)), dict(type='mmkcr.KernelComplexityMetric')]

# Retraining of OFB on DeiT, with DeiT's warm-up of 5 epochs; its repeated augmentation is a
# sampler, in the configs.
_base_ = './ofb_retrain_bs1024_300e.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=5, end=300,
         convert_to_iter_based=True)
]

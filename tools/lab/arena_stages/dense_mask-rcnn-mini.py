# Mask R-CNN with a small Swin on the digit scenes: 300 batches of 8 after those of the backbone.
_base_ = '../../../configs/kcr/detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py'

model = dict(backbone=dict(type='mmpretrain.SwinTransformer', init_cfg=None))
# batches are counted, so that they can be divided among the stages
train_dataloader = dict(sampler=dict(type='InfiniteSampler'))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=25),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=25, end=300, T_max=275)
]
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=300, val_interval=1000)
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=1000))
log_processor = dict(by_epoch=False)
val_evaluator = dict(metric=['bbox'])
test_evaluator = val_evaluator

# A ViT small enough for many runs on one core: 16 tokens of 64, 8 heads of 8, 3 layers.
# All the configs of this folder are run by tools/arena.py: total training is 72 epochs of ten
# batches of 30 images, a search's steps for gates counted as well.
_base_ = [
    '../../../configs/_base_/datasets/digits_bs64.py',
    '../../../configs/_base_/schedules/digits_bs64_48e.py',
    'mmpretrain::_base_/default_runtime.py',
]

model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='VisionTransformer',
        arch=dict(embed_dims=64, num_layers=3, num_heads=8, feedforward_channels=4 * 64),
        img_size=32,
        patch_size=8,
        out_type='avg_featmap',
        with_cls_token=False),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=64,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        topk=(1, )))

train_dataloader = dict(batch_size=30)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=70, eta_min=1e-5, by_epoch=True, begin=2, end=72,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=72, val_interval=1000)

# SSDLite at 320 px on COCO (DCS, appendix D), for 8 GPUs with 16 images each, on mmdet's model and
# data. The images are repeated 5 times in an epoch here: 40 x 5 = the paper's 200 epochs.
# lr is 9e-4 for 8 x 16 = 128 images; with --auto-scale-lr: 9e-4 x images / 128.
_base_ = 'mmdet::ssd/ssdlite_mobilenetv2-scratch_8xb24-600e_coco.py'

custom_imports = dict(
    imports=['mmkcr', 'mmkcr.models.heads.ssd_head'], allow_failed_imports=False)
default_hooks = dict(exact_resume=dict(type='mmkcr.ExactResumeHook'))
randomness = dict(seed=0, deterministic=False)

model = dict(bbox_head=dict(type='mmkcr.SSDLiteHead'))

train_dataloader = dict(batch_size=16)
optim_wrapper = dict(
    optimizer=dict(
        _delete_=True, type='AdamW', lr=9e-4, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(norm_decay_mult=0., bias_decay_mult=0.))
# 9e-4 to 1.6e-6 by a cosine
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='CosineAnnealingLR', T_max=40, eta_min_ratio=1.6 / 900, by_epoch=True, end=40,
         convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=40, val_interval=5)
auto_scale_lr = dict(base_batch_size=128)

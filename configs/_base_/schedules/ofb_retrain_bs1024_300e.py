# Retraining of OFB: the official schedule (here Swin's) at lr 6e-4, without mixup and cutmix
# (appendix C).
# For 8 GPUs with 128 images each; with --auto-scale-lr: 6e-4 x images / 1024.
_base_ = 'mmpretrain::_base_/schedules/imagenet_bs1024_adamw_swin.py'

optim_wrapper = dict(
    optimizer=dict(lr=6e-4),
    paramwise_cfg=dict(
        custom_keys={
            '.cls_token': dict(decay_mult=0.),
            '.pos_embed': dict(decay_mult=0.)
        }),
    clip_grad=dict(max_norm=5.))
train_cfg = dict(val_interval=10)

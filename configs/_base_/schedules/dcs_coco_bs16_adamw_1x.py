# AdamW for COCO, 12 epochs on 8 GPUs with 2 images each (DCS, appendix E): the paper gives the rate
# and its cosine; decay and warm-up are those of coco_bs16_adamw_1x.py.
# lr is 1e-3 for 8 x 2 = 16 images; with --auto-scale-lr: 1e-3 x images / 16.
_base_ = './coco_bs16_adamw_1x.py'

optim_wrapper = dict(optimizer=dict(lr=1e-3))

param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(type='CosineAnnealingLR', T_max=12, eta_min=0, by_epoch=True, end=12,
         convert_to_iter_based=True)
]

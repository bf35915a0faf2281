# The search in FLAVA's image encoder (ViT-B/16) while it is fine-tuned on VQAv2, then the slimming.
# bash tools/dist_train.sh configs/kcr/vqa/kcr-vqa-search_flava_8xb32_vqav2.py 8
# python tools/slim.py configs/kcr/vqa/kcr-vqa-search_flava_8xb32_vqav2.py \
#     work_dirs/kcr-vqa-search_flava_8xb32_vqav2/epoch_10.pth --target-macs 14.5G
# Not run. The paper takes the subnet into FLAVA's pre-training, of which there is no config here.
_base_ = [
    '../../_base_/datasets/vqa-coco_bs32.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_search.py',
]

model = dict(
    type='mmkcr.FlavaVQA',
    backbone=dict(type='mmkcr.FlavaImageEncoder', img_size=224),
    head=dict(type='LinearClsHead', num_classes=3129, in_channels=768),
    answers={{_base_.answers}})
compression = dict(target='14.5G', weights='checkpoints/flava_vqa.pth')

# Neither paper gives numbers: AdamW at 1e-4 for 256 questions, 10 epochs,
# cosine after the first, are ours.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.01))

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=9, by_epoch=True, begin=1, end=10,
         convert_to_iter_based=True)
]

train_cfg = dict(by_epoch=True, max_epochs=10)
val_cfg = dict()
test_cfg = dict()

auto_scale_lr = dict(base_batch_size=256)

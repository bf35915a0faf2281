# The search in FLAVA's image encoder (ViT-B/16) while it is fine-tuned on VQAv2, then the slimming.
# bash tools/dist_train.sh configs/kcr/vqa/kcr-vqa-search_flava_8xb32_vqav2.py 8
# python tools/slim.py configs/kcr/vqa/kcr-vqa-search_flava_8xb32_vqav2.py \
#     work_dirs/kcr-vqa-search_flava_8xb32_vqav2/epoch_10.pth --target-macs 14.5G
# Not run. The paper takes the subnet into FLAVA's pre-training, of which there is no config here.
_base_ = [
    '../../_base_/datasets/vqa-coco_bs32.py',
    '../../_base_/schedules/vqa_bs256_10e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_search.py',
]

model = dict(
    type='mmkcr.FlavaVQA',
    backbone=dict(type='mmkcr.FlavaImageEncoder', img_size=224),
    head=dict(type='LinearClsHead', num_classes=3129, in_channels=768),
    answers={{_base_.answers}})
compression = dict(target='14.5G', weights='checkpoints/flava_vqa.pth')

# The first fine-tuning with attention: CLIP ViT-B/16 on COCO-Stuff. Not run.
# bash tools/dist_train.sh \
#     configs/dwconv/segmentation/dwconv-fcn_clip-vit-base_dense_8xb2_coco-stuff.py 8
_base_ = [
    '../../_base_/models/dwconv_fcn_foundation-vit.py',
    '../../_base_/datasets/coco-stuff164k_bs16_336.py',
    '../../_base_/schedules/dwconv_segmentation_bs16_80k.py',
    '../../_base_/segmentation_runtime.py',
]

url = 'https://mmassets.onedl.ai/mmclassification/v0/clip/'
file = 'clip-vit-base-p16_openai-pre_3rdparty_in1k_20221220-c7d9c899.pth'
model = dict(
    data_preprocessor=dict(
        mean=[122.770938, 116.7460125, 104.09373615],
        std=[68.5005327, 66.6321579, 70.32316305]),
    backbone=dict(
        arch='base',
        patch_size=16,
        pre_norm=True,
        init_cfg=dict(type='Pretrained', checkpoint=url + file)),
    decode_head=dict(in_channels=768, channels=768))
del url, file

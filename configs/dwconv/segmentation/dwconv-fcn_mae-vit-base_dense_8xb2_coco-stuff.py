# The first fine-tuning with attention: MAE ViT-B/16 on COCO-Stuff. Not run.
# bash tools/dist_train.sh \
#     configs/dwconv/segmentation/dwconv-fcn_mae-vit-base_dense_8xb2_coco-stuff.py 8
_base_ = [
    '../../_base_/models/dwconv_fcn_foundation-vit.py',
    '../../_base_/datasets/coco-stuff164k_bs16_336.py',
    '../../_base_/schedules/dwconv_segmentation_bs16_80k.py',
    '../../_base_/segmentation_runtime.py',
]

url = ('https://mmassets.onedl.ai/mmselfsup/1.x/mae/'
       'mae_vit-base-p16_8xb512-fp16-coslr-1600e_in1k/')
file = 'mae_vit-base-p16_8xb512-fp16-coslr-1600e_in1k_20220825-f7569ca2.pth'
model = dict(
    backbone=dict(
        arch='base',
        patch_size=16,
        init_cfg=dict(type='Pretrained', checkpoint=url + file)),
    decode_head=dict(in_channels=768, channels=768))
del url, file

# The first fine-tuning with attention: CLIP ViT-L/14 on COCO-Stuff. Not run.
# bash tools/dist_train.sh \
#     configs/dwconv/segmentation/dwconv-fcn_clip-vit-large_dense_8xb2_coco-stuff.py 8
_base_ = './dwconv-fcn_clip-vit-base_dense_8xb2_coco-stuff.py'

url = 'https://mmassets.onedl.ai/mmclassification/v0/clip/'
file = 'vit-large-p14_clip-openai-pre_3rdparty_20230517-95e2af0b.pth'
model = dict(
    backbone=dict(
        arch='large',
        patch_size=14,
        layer_cfgs=dict(act_cfg=dict(type='mmpretrain.QuickGELU')),
        init_cfg=dict(checkpoint=url + file)),
    decode_head=dict(in_channels=1024, channels=1024))
del url, file

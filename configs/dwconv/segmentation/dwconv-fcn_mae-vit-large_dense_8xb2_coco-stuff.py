# The first fine-tuning with attention: MAE ViT-L/16 on COCO-Stuff. Not run.
# bash tools/dist_train.sh \
#     configs/dwconv/segmentation/dwconv-fcn_mae-vit-large_dense_8xb2_coco-stuff.py 8
_base_ = './dwconv-fcn_mae-vit-base_dense_8xb2_coco-stuff.py'

url = ('https://mmassets.onedl.ai/mmselfsup/1.x/mae/'
       'mae_vit-large-p16_8xb512-fp16-coslr-1600e_in1k/')
file = 'mae_vit-large-p16_8xb512-fp16-coslr-1600e_in1k_20220825-cc7e98c9.pth'
model = dict(
    backbone=dict(
        arch='large',
        init_cfg=dict(checkpoint=url + file)),
    decode_head=dict(in_channels=1024, channels=1024))
del url, file

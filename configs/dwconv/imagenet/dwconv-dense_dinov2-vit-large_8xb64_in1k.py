# The first fine-tuning with attention: DINOv2 ViT-L/14 on ImageNet. Not run.
# bash tools/dist_train.sh configs/dwconv/imagenet/dwconv-dense_dinov2-vit-large_8xb64_in1k.py 8
_base_ = './dwconv-dense_dinov2-vit-base_8xb64_in1k.py'

url = 'https://mmassets.onedl.ai/mmpretrain/v1.0/dinov2/'
file = 'vit-large-p14_dinov2-pre_3rdparty_20230426-f3302d9e.pth'
model = dict(
    backbone=dict(arch='dinov2-large', init_cfg=dict(checkpoint=url + file)),
    head=dict(in_channels=1024))
del url, file

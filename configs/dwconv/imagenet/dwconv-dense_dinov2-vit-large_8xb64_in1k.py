# The first fine-tuning with attention: DINOv2 ViT-L/14 on ImageNet. Not run.
# bash tools/dist_train.sh configs/dwconv/imagenet/dwconv-dense_dinov2-vit-large_8xb64_in1k.py 8
_base_ = [
    '../../_base_/models/dwconv_dinov2-vit-large.py',
    '../../_base_/datasets/imagenet_bs64_336.py',
    '../../_base_/schedules/dwconv_imagenet_bs512_20e.py',
    '../../_base_/default_runtime.py',
]

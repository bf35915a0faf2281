# Replaces the 12 blocks of lowest score of DINOv2 ViT-L/14, then trains classifier and
# convolutions alone. Not run.
# python tools/analysis_tools/score_heads.py \
#     configs/dwconv/imagenet/dwconv-dense_dinov2-vit-large_linear_8xb64_in1k.py \
#     work_dirs/dwconv-dense_dinov2-vit-large_linear_8xb64_in1k/epoch_20.pth --replace 12
# bash tools/dist_train.sh \
#     configs/dwconv/imagenet/dwconv-replace_dinov2-vit-large_linear_8xb64_in1k.py 8
_base_ = [
    '../../_base_/models/dwconv_dinov2-vit-large.py',
    '../../_base_/datasets/imagenet_bs64_336.py',
    '../../_base_/schedules/dwconv_imagenet_bs512_10e.py',
    '../../_base_/default_runtime.py',
]

slim_dir = 'work_dirs/dwconv-dense_dinov2-vit-large_linear_8xb64_in1k/slim'
model = dict(
    backbone=dict(
        structure=f'{slim_dir}/structure.json', init_cfg=None, frozen_stages=24))
optim_wrapper = dict(optimizer=dict(lr=1e-3))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir

# KCR-Swin-B as an ordinary classifier: for testing, fine-tuning and export.
# python tools/test.py configs/kcr/deploy/kcr-deploy_swin-base_8xb64_in1k.py \
#     work_dirs/kcr-retrain_swin-base_8xb64_in1k/epoch_300.pth
# Not run. Reported: top-1 84.7 %.
_base_ = [
    '../../_base_/models/kcr_swin-base.py',
    'mmpretrain::_base_/datasets/imagenet_bs64.py',
    '../../_base_/schedules/imagenet_bs512_adamw_300e.py',
    '../../_base_/default_runtime.py',
]

# written by tools/slim.py
structure = 'work_dirs/kcr-search_swin-base_8xb64_in1k-100/slim/structure.json'
model = dict(backbone=dict(structure=structure, fused_attention=True))
del structure

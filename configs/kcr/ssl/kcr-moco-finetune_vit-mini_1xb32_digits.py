# The pre-trained subnet fine-tuned with the labels of 103 digits, every 14th.
# python tools/train.py configs/kcr/ssl/kcr-moco-finetune_vit-mini_1xb32_digits.py
_base_ = [
    '../../_base_/datasets/digits_bs64.py',
    '../../_base_/schedules/digits_bs64_48e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_retrain.py',
]

model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='MoCoV3ViT',
        arch=dict(embed_dims=96, num_layers=4, num_heads=4, feedforward_channels=4 * 96),
        img_size=32,
        patch_size=8,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/kcr-moco-pretrain_vit-mini_1xb128_digits/epoch_100.pth',
            prefix='backbone.')),
    head=dict(type='VisionTransformerClsHead', num_classes=10, in_channels=96, topk=(1, )))
train_dataloader = dict(batch_size=32, dataset=dict(indices=list(range(0, 1437, 14))))
optim_wrapper = dict(optimizer=dict(lr=1e-3))
compression = dict(
    structure='work_dirs/kcr-moco-search_vit-mini_1xb128_digits/slim/structure.json',
    # an ordinary classifier
    wrapper=None, hooks=[])
auto_scale_lr = dict(base_batch_size=32)

# KCR-ViT-B fine-tuned on Stanford Cars (KCR v2, D.1).
# bash tools/dist_train.sh configs/kcr/transfer/kcr-transfer_vit-base_8xb64_cars.py 8
# Not run. Reported: top-1 93.8 %.
_base_ = [
    '../../_base_/models/kcr_vit-base.py',
    'mmpretrain::_base_/datasets/imagenet_bs64.py',
    '../../_base_/default_runtime.py',
]

# 196 classes; the transforms are those of the host's ImageNet config
data_preprocessor = dict(num_classes=196)
train_dataloader = dict(
    dataset=dict(type='StanfordCars', data_root='data/Stanford_Cars', split='train'))
val_dataloader = dict(
    dataset=dict(type='StanfordCars', data_root='data/Stanford_Cars', split='test'))
val_evaluator = dict(topk=(1, ))
test_dataloader = val_dataloader
test_evaluator = val_evaluator

structure = 'work_dirs/kcr-search_vit-base_8xb64_in1k-100/slim/structure.json'
checkpoint = 'work_dirs/kcr-retrain_vit-base_8xb64_in1k/epoch_300.pth'
model = dict(
    backbone=dict(
        structure=structure,
        init_cfg=dict(
            _delete_=True, type='Pretrained', checkpoint=checkpoint, prefix='backbone.')),
    head=dict(num_classes=196))
del structure, checkpoint

# lr is a fixed 1e-5 for 8 x 64 = 512 images; with --auto-scale-lr: 1e-5 x images / 512
optim_wrapper = dict(optimizer=dict(type='Adam', lr=1e-5))
train_cfg = dict(by_epoch=True, max_epochs=50, val_interval=5)
val_cfg = test_cfg = dict()
auto_scale_lr = dict(base_batch_size=512)

# FLAVA with KCR-ViT-B as image encoder, fine-tuned on VQAv2 (KCR v2, table 5) from the weights that
# the search left; dense with compression.structure=None
# compression.weights=checkpoints/flava_vqa.pth.
# bash tools/dist_train.sh configs/kcr/vqa/kcr-vqa-finetune_flava_8xb32_vqav2.py 8
# Not run. Reported: VQA score 73.26 on test-dev.
_base_ = [
    '../../_base_/datasets/vqa-coco_bs32.py',
    '../../_base_/schedules/vqa_bs256_10e.py',
    '../../_base_/default_runtime.py',
    '../../_base_/methods/kcr_retrain.py',
]

slim_dir = 'work_dirs/kcr-vqa-search_flava_8xb32_vqav2/slim'
model = dict(
    type='mmkcr.FlavaVQA',
    backbone=dict(type='mmkcr.FlavaImageEncoder', img_size=224),
    head=dict(type='LinearClsHead', num_classes=3129, in_channels=768),
    answers={{_base_.answers}})
compression = dict(
    structure=f'{slim_dir}/structure.json', weights=f'{slim_dir}/subnet.pth',
    # an ordinary model: the paper fine-tunes with the cross entropy alone
    wrapper=None, hooks=[])
del slim_dir

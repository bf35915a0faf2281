# FLAVA with KCR-ViT-B as image encoder, fine-tuned on VQAv2 (KCR v2, table 5) from the weights that
# the search left; dense with compression.structure=None
# compression.weights=checkpoints/flava_vqa.pth.
# bash tools/dist_train.sh configs/kcr/vqa/kcr-vqa-finetune_flava_8xb32_vqav2.py 8
# Not run. Reported: VQA score 73.26 on test-dev.
_base_ = './kcr-vqa-search_flava_8xb32_vqav2.py'

slim_dir = 'work_dirs/kcr-vqa-search_flava_8xb32_vqav2/slim'
# an ordinary model: the paper fine-tunes with the cross entropy alone
compression = dict(
    _delete_=True, sites=['mlp_channels'],
    structure=f'{slim_dir}/structure.json', weights=f'{slim_dir}/subnet.pth')
del slim_dir

# FLAVA with KCR-ViT-B as image encoder, fine-tuned on SNLI-VE (KCR v2, table 5) from the
# weights that the search on VQAv2 left, but for its head.
# bash tools/dist_train.sh configs/kcr/vqa/kcr-vqa-finetune_flava_8xb32_snli-ve.py 8
# Not run. Reported: accuracy 79.35 % on the test set.
_base_ = './kcr-vqa-finetune_flava_8xb32_vqav2.py'

# Lines of JSON from the data's authors (necla-ml/SNLI-VE): images of Flickr30K, sentences, three
# relations.
answers = ['entailment', 'neutral', 'contradiction']
data = dict(
    _delete_=True, type='mmkcr.SNLIVE', data_root='data/snli-ve',
    pipeline={{_base_.test_pipeline}})
train_dataloader = dict(dataset=dict(data, ann_file='snli_ve_train.jsonl'))
val_dataloader = dict(dataset=dict(data, ann_file='snli_ve_dev.jsonl'))
test_dataloader = dict(dataset=dict(data, ann_file='snli_ve_test.jsonl'))
del data
val_evaluator = dict(_delete_=True, type='Accuracy', topk=(1, ))
test_evaluator = val_evaluator
model = dict(head=dict(num_classes=3), answers=answers)

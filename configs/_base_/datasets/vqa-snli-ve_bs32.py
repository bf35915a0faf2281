# SNLI-VE: images of Flickr30K, sentences, three relations. Lines of JSON from its authors'
# repository (necla-ml/SNLI-VE); sentences by BERT's tokenizer, as in FLAVA.
_base_ = './vqa-coco_bs32.py'

answers = ['entailment', 'neutral', 'contradiction']
pipeline = {{_base_.test_pipeline}}
train_dataloader = dict(
    dataset=dict(
        _delete_=True, type='mmkcr.SNLIVE', data_root='data/snli-ve',
        ann_file='snli_ve_train.jsonl', pipeline=pipeline))
val_dataloader = dict(
    dataset=dict(
        _delete_=True, type='mmkcr.SNLIVE', data_root='data/snli-ve',
        ann_file='snli_ve_dev.jsonl', pipeline=pipeline))
test_dataloader = dict(
    dataset=dict(
        _delete_=True, type='mmkcr.SNLIVE', data_root='data/snli-ve',
        ann_file='snli_ve_test.jsonl', pipeline=pipeline))
val_evaluator = dict(_delete_=True, type='Accuracy', topk=(1, ))
test_evaluator = val_evaluator
del pipeline

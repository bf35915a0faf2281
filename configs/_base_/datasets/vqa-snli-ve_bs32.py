# SNLI-VE: images of Flickr30K, sentences, three relations. Lines of JSON from its authors'
# repository (necla-ml/SNLI-VE); sentences by BERT's tokenizer, as in FLAVA.
_base_ = './vqa-coco_bs32.py'

answers = ['entailment', 'neutral', 'contradiction']
packed = dict(
    type='PackInputs',
    algorithm_keys=['tokens', 'question', 'gt_answer', 'gt_answer_weight'],
    meta_keys=['question_id', 'image_id', 'sample_idx', 'img_path', 'img_shape'])
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(224, 224), interpolation='bicubic', backend='pillow'),
    dict(type='mmkcr.TokenizeQuestion', vocabulary='bert-base-uncased', length=30),
    packed,
]
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
del packed, pipeline

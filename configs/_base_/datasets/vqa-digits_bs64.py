# Two or three questions about each of 4000 digit scenes, and of 500 scenes of held-out digits.
# python tools/dataset_converters/digits_vqa.py --out data/digits-vqa
data_root = 'data/digits-vqa'
data_preprocessor = dict(mean=[20.] * 3, std=[55.] * 3, to_rgb=False)

answers = ['yes', 'no', *'0123456789']
vocabulary = [
    'how', 'many', 'digits', 'are', 'there', 'which', 'digit', 'is', 'leftmost', 'a',
    *'0123456789'
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='mmkcr.TokenizeQuestion', vocabulary=vocabulary, length=6),
    dict(type='mmkcr.LabelAnswer', answers=answers),
    dict(
        type='PackInputs',
        algorithm_keys=['tokens', 'question', 'gt_answer', 'gt_answer_weight'],
        meta_keys=['question_id', 'image_id', 'sample_idx', 'img_path', 'img_shape'])
]
train_pipeline = test_pipeline

train_dataloader = dict(
    batch_size=64,
    num_workers=2,
    persistent_workers=True,
    dataset=dict(
        type='COCOVQA',
        data_root=data_root,
        data_prefix='train',
        question_file='train_questions.json',
        ann_file='train_annotations.json',
        pipeline=train_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=True))
val_dataloader = dict(
    batch_size=64,
    num_workers=2,
    persistent_workers=True,
    dataset=dict(
        type='COCOVQA',
        data_root=data_root,
        data_prefix='val',
        question_file='val_questions.json',
        ann_file='val_annotations.json',
        pipeline=test_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='VQAAcc')

test_dataloader = val_dataloader
test_evaluator = val_evaluator

# VQAv2 with the 3129 most frequent answers as classes; questions by BERT's tokenizer, as in FLAVA.
# python tools/dataset_converters/vqa_answers.py \
#     data/coco/annotations/v2_mscoco_train2014_annotations.json \
#     --out data/coco/annotations/vqa_answers.json
_base_ = 'mmpretrain::_base_/datasets/coco_vqa.py'

answers = 'data/coco/annotations/vqa_answers.json'
data_preprocessor = dict(
    # of CLIP, as in FLAVA
    mean=[122.770938, 116.7460125, 104.09373615],
    std=[68.5005327, 66.6321579, 70.32316305],
    to_rgb=True)
packed = dict(
    type='PackInputs',
    algorithm_keys=['tokens', 'question', 'gt_answer', 'gt_answer_weight'],
    meta_keys=['question_id', 'image_id', 'sample_idx', 'img_path', 'img_shape'])
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(224, 224), interpolation='bicubic', backend='pillow'),
    dict(type='mmkcr.TokenizeQuestion', vocabulary='bert-base-uncased', length=30),
    packed,
]
# a question may be about any place: the image is not cropped
train_pipeline = [*test_pipeline[:-1], dict(type='mmkcr.LabelAnswer', answers=answers), packed]
del packed

train_dataloader = dict(batch_size=32, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=32, dataset=dict(pipeline=test_pipeline))
# the test set has no answers: `ReportVQA` writes ours for the server
test_dataloader = dict(batch_size=32, dataset=dict(pipeline=test_pipeline))

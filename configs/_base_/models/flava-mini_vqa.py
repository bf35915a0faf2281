# A small FLAVA for questions about the 48 x 48 digit scenes: 9 patches, each with one digit or
# none, and a class token. Of `transformers`, with random weights, which for 64 channels are wider
# than the 0.02 of 768.
model = dict(
    type='mmkcr.FlavaVQA',
    backbone=dict(
        type='mmkcr.FlavaImageEncoder',
        img_size=48,
        patch_size=16,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        initializer_range=0.1),
    # padding, unknown words, and the words of the questions
    text=dict(
        vocab_size=22,
        max_position_embeddings=8,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=128,
        initializer_range=0.1),
    multimodal=dict(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        initializer_range=0.1),
    head=dict(
        type='LinearClsHead',
        num_classes=12,
        in_channels=64,
        loss=dict(type='CrossEntropyLoss')))

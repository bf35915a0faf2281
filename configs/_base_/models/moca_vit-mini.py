# The same around a ViT for the 32 x 32 digits, of 4 x 4 tokens.
_base_ = './moca_vit-base.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='MAEViT',
        arch=dict(embed_dims=96, num_layers=4, num_heads=4, feedforward_channels=4 * 96),
        img_size=32,
        patch_size=8),
    early_layer=1,
    neck=dict(size=(4, 4), in_channels=96, embed_dims=64, depth=1, num_heads=4),
    head=dict(in_channels=96, decoder_channels=64),
    codebook=dict(channels=96, words=256, new_words=8, border=0))

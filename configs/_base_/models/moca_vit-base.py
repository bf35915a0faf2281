# MOCA around ViT-B, with the settings of its public code: two masks of every view, a decoder of two
# blocks that sees the eighth layer, 4096 words of which 32 are renewed in every step.
model = dict(
    type='mmkcr.MOCA',
    base_momentum=0.006,
    backbone=dict(type='MAEViT', arch='base', img_size=224, patch_size=16),
    early_layer=7,
    mask_ratios=(0.55, 0.75),
    decoded=(0.65, 0.45),
    neck=dict(
        type='mmkcr.MOCADecoder',
        size=(14, 14),
        in_channels=768,
        embed_dims=512,
        depth=2,
        num_heads=16),
    head=dict(type='mmkcr.MOCAHead', in_channels=768, decoder_channels=512, scale=3.),
    codebook=dict(
        type='mmkcr.OnlineCodebook', channels=768, words=4096, new_words=32, sharpness=10.))

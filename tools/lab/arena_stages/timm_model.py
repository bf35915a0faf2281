# The same network as vit-nano, as timm has it: Torch-Pruning knows its attention.
timm_model = dict(
    backbone=dict(
        _delete_=True,
        type='TIMMBackbone',
        model_name='vit_tiny_patch16_224',
        img_size=32,
        patch_size=8,
        embed_dim=64,
        depth=3,
        num_heads=8,
        features_only=True,
        out_indices=(2, )),
    neck=dict(type='GlobalAveragePooling'))

# MoCo v3 around a ViT for the 32 x 32 digits: 16 tokens and a class token, as in mmpretrain's
# configs, with heads as much narrower as the network is. Its batch norms
# (SyncBN) refuse several processes without GPUs; ExactResumeHook makes ordinary ones meet.
temperature = 0.2
model = dict(
    type='MoCoV3',
    base_momentum=0.01,
    backbone=dict(
        type='MoCoV3ViT',
        arch=dict(embed_dims=96, num_layers=4, num_heads=4, feedforward_channels=4 * 96),
        img_size=32,
        patch_size=8,
        stop_grad_conv1=True),
    neck=dict(
        type='NonLinearNeck',
        in_channels=96,
        hid_channels=256,
        out_channels=64,
        num_layers=3,
        with_bias=False,
        with_last_bn=True,
        with_last_bn_affine=False,
        with_last_bias=False,
        with_avg_pool=False,
        norm_cfg=dict(type='BN1d')),
    head=dict(
        type='MoCoV3Head',
        predictor=dict(
            type='NonLinearNeck',
            in_channels=64,
            hid_channels=256,
            out_channels=64,
            num_layers=2,
            with_bias=False,
            with_last_bn=True,
            with_last_bn_affine=False,
            with_last_bias=False,
            with_avg_pool=False,
            norm_cfg=dict(type='BN1d')),
        loss=dict(type='CrossEntropyLoss', loss_weight=2 * temperature),
        temperature=temperature))
del temperature

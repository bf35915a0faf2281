# Mask R-CNN with the Swin of the digits (kcr_swin-mini.py), narrow heads and few proposals, for the
# digit scenes: digits of 16 to 48 pixels on maps of strides 4 and 8.
_base_ = 'mmdet::_base_/models/mask-rcnn_r50_fpn.py'

roi_extractor = dict(out_channels=64, featmap_strides=[4, 8], finest_scale=28)
proposals = dict(nms_pre=200, max_per_img=50)
model = dict(
    data_preprocessor=dict(mean=[21.] * 3, std=[61.] * 3, bgr_to_rgb=False),
    backbone=dict(
        _delete_=True,
        type='mmkcr.KCRSwinTransformer',
        arch=dict(embed_dims=48, depths=[2, 2], num_heads=[2, 4]),
        img_size=32,
        patch_size=4,
        window_size=4,
        use_abs_pos_embed=False,
        drop_path_rate=0.,
        out_indices=(0, 1),
        pad_small_map=True),
    neck=dict(in_channels=[48, 96], out_channels=64, num_outs=4),
    rpn_head=dict(
        in_channels=64,
        feat_channels=64,
        anchor_generator=dict(scales=[4], strides=[4, 8, 16, 32])),
    roi_head=dict(
        bbox_roi_extractor=roi_extractor,
        bbox_head=dict(in_channels=64, fc_out_channels=128, num_classes=10),
        mask_roi_extractor=roi_extractor,
        mask_head=dict(num_convs=2, in_channels=64, conv_out_channels=64, num_classes=10)),
    train_cfg=dict(
        rpn_proposal=proposals,
        rcnn=dict(sampler=dict(num=48))),
    test_cfg=dict(rpn=proposals, rcnn=dict(max_per_img=20)))
del roi_extractor, proposals

# UPerNet with KCR-Swin-T for ADE20K: stochastic depth 0.2 (KCR v2, D.3), heads as in mmseg.
_base_ = 'mmseg::_base_/models/upernet_swin.py'

model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(
        _delete_=True,
        type='mmkcr.KCRSwinTransformer',
        arch='tiny',
        drop_path_rate=0.2,
        out_indices=(0, 1, 2, 3),
        pad_small_map=True),
    decode_head=dict(in_channels=[96, 192, 384, 768], num_classes=150),
    auxiliary_head=dict(in_channels=384, num_classes=150))

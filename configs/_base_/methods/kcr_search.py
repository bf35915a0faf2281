# A KCR search on any config of mmpretrain, mmdet or mmseg: channels of the MLPs, gates and weights
# in turn, the KCR term after 45 % of the run. Beside a host config:
#   _base_ = ['mmdet::mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
#             'mmkcr::_base_/methods/kcr_search.py']
#   compression = dict(target='70%')
runner_type = 'mmkcr.CompressionRunner'
compression = dict(
    sites=['mlp_channels'],
    gates=dict(type='mmkcr.GumbelChannelGate'),
    wrapper='mmkcr.SearchModel',
    # lambda 0.2; with `target` it pulls at the target only
    price=dict(type='mmkcr.MacsPrice', weight=0.2),
    # it grows with the squared norm of the features, and can be many times the task's loss when it
    # is switched on: see `loss_task` beside `loss_kcr` in the log
    regularizers=dict(kcr=dict(type='mmkcr.KernelComplexityLoss', rank_ratio=0.2, weight=0.2)),
    loop='bilevel',
    fraction=0.3,
    architecture=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.),
    hooks=[
        # 4.5 x 0.95^200 = 1.6e-4 at the end, however long the run is
        dict(type='mmkcr.TemperatureDecayHook', initial=4.5, minimum=1.6e-4, until='100%'),
        dict(type='mmkcr.WarmupSwitchHook', begin='45%'),
        dict(type='mmkcr.NystromRefreshHook', interval='15%'),
    ])

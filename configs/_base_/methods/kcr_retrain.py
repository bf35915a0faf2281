# The retraining of a subnet with the KCR term after 30 % of the run (90 of 300 epochs, with a new
# basis every 30), on any host config:
#   compression = dict(structure='.../structure.json', weights='.../subnet.pth')
runner_type = 'mmkcr.CompressionRunner'
compression = dict(
    sites=['mlp_channels'],
    wrapper='mmkcr.RegularizedModel',
    # it grows with the squared norm of the features, and can be many times the task's loss when it
    # is switched on: see `loss_task` beside `loss_kcr` in the log
    regularizers=dict(kcr=dict(type='mmkcr.KernelComplexityLoss', rank_ratio=0.2, weight=0.2)),
    hooks=[
        dict(type='mmkcr.WarmupSwitchHook', begin='30%'),
        # m = 50000, or all samples of a smaller set
        dict(type='mmkcr.NystromRefreshHook', interval='10%'),
    ])

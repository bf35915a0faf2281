# The retraining of a subnet with masks on queries and keys, on any host config. The information
# bottleneck needs labels of images, so it is added by classification configs:
#   compression = dict(regularizers=dict(ib=dict(type='mmkcr.InformationBottleneckLoss', ...)))
runner_type = 'mmkcr.CompressionRunner'
compression = dict(
    sites=['qk_mask', 'mlp_channels'],
    wrapper='mmkcr.RegularizedModel',
    hooks=[dict(type='mmkcr.GateNoiseHook')])

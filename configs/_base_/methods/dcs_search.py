# A DCS search on any host config: masks on queries and keys, and channels of the MLPs.
runner_type = 'mmkcr.CompressionRunner'
compression = dict(
    sites=['qk_mask', 'mlp_channels'],
    gates=dict(type='mmkcr.GumbelChannelGate'),
    wrapper='mmkcr.SearchModel',
    price=dict(type='mmkcr.MacsPrice', weight=0.2),
    loop='bilevel',
    fraction=0.3,
    architecture=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.),
    hooks=[dict(type='mmkcr.TemperatureDecayHook', initial=4.5, minimum=1.6e-4, until='100%')])

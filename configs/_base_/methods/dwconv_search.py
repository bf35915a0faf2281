# Differentiable subset pruning on a ViT: which blocks become depthwise convolutions. The gates'
# rate is 200 times that of the weights, as in the public code.
runner_type = 'mmkcr.CompressionRunner'
compression = dict(
    sites=['head_operator'],
    gates=dict(type='mmkcr.RelaxedTopKGate', count=6, blockwise=True),
    wrapper='mmkcr.SearchModel',
    price=dict(type='mmkcr.MacsPrice', weight=0.),
    paramwise={'gate.alpha': dict(lr_mult=200., decay_mult=0.)},
    hooks=[dict(type='mmkcr.TemperatureDecayHook', initial=1., minimum=1e-3, until='75%')])

# An Once-for-Both search on any host config: embedding where the host has it, heads and MLPs,
# pruned while it trains. `target` is required; the network ends within 3 % below it.
runner_type = 'mmkcr.CompressionRunner'
compression = dict(
    sites=['heads', 'mlp_hidden'],
    gates=dict(type='mmkcr.BiMaskGate'),
    wrapper='mmkcr.SearchModel',
    # 'paper' has the paper's weights, 'reference' those of the public code
    price=dict(type='mmkcr.AdaptiveOneHotLoss', preset='balanced'),
    loop='joint',
    hooks=[
        dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
             share=0.2),
        dict(type='mmkcr.ProgressivePruningHook', eta=0.2, share=0.5),
    ])

# The retraining of a subnet of an Once-for-Both search, on any host config.
runner_type = 'mmkcr.CompressionRunner'
compression = dict(sites=['heads', 'mlp_hidden'])

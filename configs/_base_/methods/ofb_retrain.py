# The retraining of a subnet of an Once-for-Both search, on any host config.
custom_imports = dict(imports=['mmkcr'], allow_failed_imports=False)
runner_type = 'mmkcr.CompressionRunner'
compression = dict(sites=['heads', 'mlp_hidden'])

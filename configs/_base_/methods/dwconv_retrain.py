# The fine-tuning of a ViT some of whose heads were replaced, on any host config.
runner_type = 'mmkcr.CompressionRunner'
compression = dict(sites=['head_operator'])

# The fine-tuning of a ViT some of whose heads were replaced, on any host config.
custom_imports = dict(imports=['mmkcr'], allow_failed_imports=False)
runner_type = 'mmkcr.CompressionRunner'
compression = dict(sites=['head_operator'])

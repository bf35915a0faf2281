# Fine-tuning of what was cut in the width of the stream too.
_base_ = './tune_vit-nano.py'

compression = dict(sites=['mlp_hidden', 'heads', 'embedding'])

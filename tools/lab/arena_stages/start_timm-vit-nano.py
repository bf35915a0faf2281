# The dense network that everything is cut from.
_base_ = ['./start_vit-nano.py', './dense_timm-vit-nano.py']

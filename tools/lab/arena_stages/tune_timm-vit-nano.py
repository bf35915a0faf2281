# Fine-tuning of what was cut from it.
_base_ = ['./tune_vit-nano.py', './dense_timm-vit-nano.py']

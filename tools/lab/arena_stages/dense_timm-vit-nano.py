_base_ = ['./dense_vit-nano.py', './timm_model.py']

model = {{_base_.timm_model}}

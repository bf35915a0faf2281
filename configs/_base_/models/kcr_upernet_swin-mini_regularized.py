# With the KCR term on the pooled last feature map: eta 0.2, gamma0 0.2 as in classification.
_base_ = './kcr_upernet_swin-mini.py'

model = dict(
    _delete_=True,
    type='mmkcr.RegularizedModel',
    architecture={{_base_.model}},
    regularizers=dict(
        kcr=dict(type='mmkcr.KernelComplexityLoss', num_features=96, rank_ratio=0.2, weight=0.2)))

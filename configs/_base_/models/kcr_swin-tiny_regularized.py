# With the KCR term on the features that the classifier reads: eta 0.2, gamma0 0.2 (KCR v2, 4.1).
_base_ = './kcr_swin-tiny.py'

model = dict(
    _delete_=True,
    type='mmkcr.RegularizedModel',
    architecture={{_base_.model}},
    regularizers=dict(
        kcr=dict(
            type='mmkcr.KernelComplexityLoss',
            num_features={{_base_.model.head.in_channels}},
            rank_ratio=0.2,
            weight=0.2)))

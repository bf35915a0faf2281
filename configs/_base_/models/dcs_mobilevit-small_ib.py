# With the IB loss on the features that the classifier reads: eta 50 (DCS, section 4.1).
_base_ = './dcs_mobilevit-small.py'

model = dict(
    _delete_=True,
    type='mmkcr.RegularizedModel',
    architecture={{_base_.model}},
    feature_layer='head.fc:input',
    regularizers=dict(
        mask=dict(type='mmkcr.MaskPrice', weight=0.),  # logs what the masks leave open
        ib=dict(
            type='mmkcr.InformationBottleneckLoss',
            num_features=640,
            num_classes={{_base_.model.head.num_classes}},
            weight=50.)))

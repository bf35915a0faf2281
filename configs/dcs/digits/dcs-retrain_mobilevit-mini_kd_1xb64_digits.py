# Retrains the subnet with the IB loss and with the dense network as teacher.
# python tools/train.py configs/dcs/digits/dcs-retrain_mobilevit-mini_kd_1xb64_digits.py
_base_ = './dcs-retrain_mobilevit-mini_1xb64_digits.py'

compression = dict(
    regularizers=dict(
        kd=dict(
            type='mmkcr.DistillationLoss',
            teacher='mmkcr::dcs/digits/dcs-dense_mobilevit-mini_1xb64_digits.py',
            checkpoint='work_dirs/dcs-dense_mobilevit-mini_1xb64_digits/epoch_48.pth',
            temperature=2.,
            weight=1.)))

# DCS-EfficientViT-B1 at 288 px, retrained from scratch with a teacher: CE + 50 IB + distillation.
# bash tools/dist_train.sh configs/dcs/retrain/dcs-retrain_efficientvit-b1_r288-kd_8xb64_in1k.py 8
# Not run. Reported: top-1 83.1 %, 0.72 G.
_base_ = ['./dcs-retrain_efficientvit-b1_r288_8xb64_in1k.py']

compression = dict(
    regularizers=dict(
        kd=dict(
            type='mmkcr.DistillationLoss',
            teacher='mmpretrain::efficientnet/efficientnet-b5_8xb32_in1k.py',
            checkpoint='https://mmassets.onedl.ai/mmclassification/v0/efficientnet/'
            'efficientnet-b5_3rdparty_8xb32-aa_in1k_20220119-2cab8b78.pth',
            temperature=1.,
            weight=1.,
            input_size=456)))

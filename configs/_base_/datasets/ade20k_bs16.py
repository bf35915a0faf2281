# ADE20K for 8 GPUs with 2 images each. mmseg's transforms are those of KCR v2 (D.3): scales 0.5 to
# 2.0, crops of 512 x 512, flips, photometric distortion; --tta tests at 0.5 to 1.75, with flips.
_base_ = 'mmseg::_base_/datasets/ade20k.py'

train_dataloader = dict(batch_size=2)

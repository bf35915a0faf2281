# As of 64 images, in twice as many steps, at 1 / sqrt(2) of the rate.
_base_ = './kcr_digits-retrain_bs64_32e.py'

optim_wrapper = dict(optimizer=dict(lr=1.4e-3))
auto_scale_lr = dict(base_batch_size=32)

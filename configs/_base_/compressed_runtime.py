# mmpretrain's runtime, with runs that resume exactly: for configs with a method base, which imports
# this package.
_base_ = 'mmpretrain::_base_/default_runtime.py'

default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=3),
    # every random draw is a function of the seed and of where the run is
    exact_resume=dict(type='mmkcr.ExactResumeHook'))
randomness = dict(seed=0, deterministic=False)

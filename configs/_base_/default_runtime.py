# mmpretrain's runtime, with runs that resume exactly.
_base_ = 'mmpretrain::_base_/default_runtime.py'

custom_imports = dict(imports=['mmkcr'], allow_failed_imports=False)
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=3),
    # every random draw is a function of the seed and of where the run is
    exact_resume=dict(type='mmkcr.ExactResumeHook'))
randomness = dict(seed=0, deterministic=False)

# mmseg's runtime: for configs with a method base, which imports this package. Runs count
# iterations, and resume exactly: see the schedules, which hold the hooks as mmseg's do.
_base_ = 'mmseg::_base_/default_runtime.py'

randomness = dict(seed=0, deterministic=False)

# mmseg's runtime. Runs count iterations, and resume exactly: see the schedules, which hold the
# hooks as mmseg's do.
_base_ = 'mmseg::_base_/default_runtime.py'

custom_imports = dict(imports=['mmkcr'], allow_failed_imports=False)
randomness = dict(seed=0, deterministic=False)

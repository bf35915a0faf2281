"""A hook that makes a run last, without computing; and no layout of configs, as in the suite."""

import os
import time

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from yapf.yapflib import yapf_api

yapf_api.FormatCode = lambda text, **_: (text, False)


@HOOKS.register_module()
class SlowHook(Hook):
    """Waits before every iteration, as many seconds as the variable SLOW of the environment."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        time.sleep(float(os.environ.get('SLOW', 0)))

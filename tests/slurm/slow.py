"""A hook that makes a run last, without computing."""

import os
import time

from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class SlowHook(Hook):
    """Waits before every iteration, as many seconds as the variable SLOW of the environment."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        time.sleep(float(os.environ.get('SLOW', 0)))

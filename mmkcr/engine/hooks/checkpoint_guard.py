"""Refuses checkpoints of another model."""

from typing import Optional

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmkcr.models.loading import load_run, load_start, load_task, weights_of
from mmkcr.registry import HOOKS


@HOOKS.register_module()
class CheckpointGuardHook(Hook):
    """Stops a run whose checkpoint does not fit, which MMEngine only warns of.

    To resume, a checkpoint must hold every entry of the model, in its shape
    (:func:`~mmkcr.models.loading.load_run`); to test, every entry of the task model
    (:func:`~mmkcr.models.loading.load_task`); to start a training (``load_from``), those of the
    backbone (:func:`~mmkcr.models.loading.load_start`). ``tools/train.py`` and ``tools/test.py``
    use it.

    Args:
        complete (bool, optional): Whether the whole task model must be there. Defaults to None:
            what the run does with the checkpoint decides.
    """

    priority = 'VERY_LOW'  # after others changed the checkpoint, as `EMAHook` does

    def __init__(self, complete: Optional[bool] = None) -> None:
        self.complete = complete

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Load it once for a try.

        Args:
            runner (Runner): The runner.
            checkpoint (dict): What was read from the file.

        Raises:
            ValueError: It does not fit; the message names the first entry that does not.
        """
        path = str(runner._load_from or runner.work_dir)
        load = load_task if self.complete else load_run if runner._resume else load_start
        load(runner.model, weights_of(checkpoint, path), path)

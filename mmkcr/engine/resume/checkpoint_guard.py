"""Refuses checkpoints of another model."""

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmkcr.models.loading import load_run, load_start, load_task, weights_of
from mmkcr.registry import HOOKS
from .resume_check import config_changes


@HOOKS.register_module()
class CheckpointGuardHook(Hook):
    """Stops a run whose checkpoint does not fit, which MMEngine only warns of.

    To resume, a checkpoint must hold every entry of the model, in its shape
    (:func:`~mmkcr.models.loading.load_run`); to test, every entry of the task model
    (:func:`~mmkcr.models.loading.load_task`); to start a training (``load_from``), those of the
    backbone (:func:`~mmkcr.models.loading.load_start`). A run is not resumed as another one, see
    :func:`~mmkcr.engine.resume.resume_check.config_changes`. ``tools/train.py`` and
    ``tools/test.py`` use this hook.

    Args:
        complete (bool, optional): Whether the whole task model must be there. Defaults to None:
            decided by what the run does with the checkpoint.
    """

    priority = 'VERY_LOW'  # after others changed the checkpoint, as `EMAHook` does

    def __init__(self, complete: bool | None = None) -> None:
        self.complete = complete

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Load the checkpoint once, strictly, before the host loads it.

        Raises:
            ValueError: The checkpoint does not fit; the message names the first entry that does
                not. Or the run to resume was another one.
        """
        path = str(runner._load_from or runner.work_dir)
        if runner._resume:
            if 'optimizer' not in checkpoint:  # MMEngine would begin it anew without a word
                raise ValueError(f'expected the state of the optimizer in `{path}` to resume from, '
                                 'found none, as in a file of the best weights or of a published '
                                 'network: resume from another checkpoint of the run, or begin '
                                 'from these weights (`load_from` without `--resume`)')
            self._compare_configs(runner, checkpoint, path)
        load = load_task if self.complete else load_run if runner._resume else load_start
        load(runner.model, weights_of(checkpoint, path), path)

    @staticmethod
    def _compare_configs(runner: Runner, checkpoint: dict, path: str) -> None:
        text = (checkpoint.get('meta') or {}).get('cfg')
        try:
            if not isinstance(text, str):
                raise ValueError('it holds none')
            refused, named = config_changes(text, runner.cfg, path)
        except ValueError as error:  # objects in a config, or a checkpoint of another program
            runner.logger.warning(f'The config of `{path}` cannot be compared: {error}')
            return
        for line in named:
            runner.logger.warning(f'Resumed with another config: {line}.')
        if refused:
            raise ValueError(
                f'expected the config of the run in `{path}`, found that {refused[0]}, and '
                f'{len(refused) - 1} more changes that make it another run: begin one from its '
                'weights (`load_from` without `--resume`)')

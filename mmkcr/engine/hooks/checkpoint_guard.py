"""Refuses checkpoints of another model."""

import re
from typing import Any, Mapping, Optional

from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmkcr.registry import HOOKS

_SIZE = re.compile(r'size mismatch for (\S+): copying a param with shape torch\.Size\((.*?)\) from '
                   r'checkpoint, the shape in current model is torch\.Size\((.*?)\)\.')


@HOOKS.register_module()
class CheckpointGuardHook(Hook):
    """Stops a run whose checkpoint does not fit, which MMEngine only warns of.

    To test or to resume, a checkpoint must hold every entry of the model, in
    its shape. To start a training (``load_from``) the backbone's entries must
    have the model's shapes; a head for other classes may differ, and what is
    missing keeps its initial values, as the hosts do it. Conversions that the
    model's own loading does (position embeddings of another size, old keys)
    are respected. ``tools/train.py`` and ``tools/test.py`` use it.

    Args:
        complete (bool, optional): Whether entries may neither be missing nor differ.
            Defaults to None: when a run is resumed.
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
        check_weights(runner.model, checkpoint, runner._load_from or runner.work_dir,
                      runner._resume if self.complete is None else self.complete)


def check_weights(model: nn.Module, checkpoint: Mapping[str, Any], path: str,
                  complete: bool = True) -> None:
    """Load a checkpoint, or refuse one that does not fit.

    Args:
        model (nn.Module): Whose weights are loaded; may be wrapped.
        checkpoint (Mapping): What was read from a file. Entries that the model
            does not have, such as a regulariser's, are passed over.
        path (str): The file, for the message.
        complete (bool): See :class:`CheckpointGuardHook`. Defaults to True.

    Raises:
        ValueError: It does not fit; the message names the first entry that does not.
    """
    model = getattr(model, 'module', model)
    state = checkpoint.get('state_dict', checkpoint)
    state = {re.sub(r'^module\.', '', key): value for key, value in state.items()}
    missing, found = [], []
    try:
        missing = model.load_state_dict(state, strict=False).missing_keys
    except RuntimeError as error:
        found = _SIZE.findall(str(error))
        if not found:
            raise ValueError(f'expected a checkpoint of the model, found another: {error}'
                             ) from error
    missing = [_bare(name) for name in missing]
    found = [(_bare(name), *shapes) for name, *shapes in found]
    where = f'{type(model).__name__} in `{path}`'
    wrong = [entry for entry in found if complete or entry[0].startswith('backbone.')]
    if wrong:
        name, shape, wanted = wrong[0]
        raise ValueError(f'expected a checkpoint of the {where}, found `{name}` of shape '
                         f'{shape}, not {wanted}, and {len(wrong) - 1} more that differ')
    if complete and missing:
        raise ValueError(f'expected a checkpoint of the {where}, found none of its entry '
                         f'`{missing[0]}` and of {len(missing) - 1} others')


def _bare(name: str) -> str:
    return name.removeprefix('architecture.')  # of our wrappers, not in checkpoints

"""Loading a checkpoint into a model: whole, or not at all."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from mmkcr.core.checks import one_line
from .backbone_loading import BACKBONE, load_named, read_digests
from .strict_loading import NO_KEY, RECOMPUTED, refuse
from .tasks import find_task, unwrap

#: State that training wrappers keep beside the task model's: no task model needs it.
TRAINING_STATE = ('regularizers.', 'price.', 'reconstruction.', '_extra_state')
_SIZE = re.compile(r'size mismatch for (\S+): copying a param with shape torch\.Size\((.*?)\) from '
                   r'checkpoint, the shape in current model is torch\.Size\((.*?)\)\.')


def weights_of(checkpoint: Mapping[str, Any], model: nn.Module, path: str) -> dict[str, Tensor]:
    """The ``state_dict`` of a checkpoint; with MMEngine's ``EMAHook`` the averaged weights.

    Args:
        checkpoint (Mapping): Its content.
        model (nn.Module): That the weights are for. The structure in the checkpoint's ``meta``
            must keep the same units, see :func:`~.backbone_loading.read_digests`.
        path (str): Of the checkpoint, for messages.

    Raises:
        ValueError: It is no checkpoint, or one of other units.
    """
    state = checkpoint.get('state_dict', checkpoint)
    if not isinstance(state, Mapping):
        raise ValueError(f'expected a checkpoint with tensors by name at `{path}`, found a '
                         f'`{type(state).__name__}` as its `state_dict`')
    return {**read_digests(find_task(model), checkpoint, path),
            **{key.removeprefix('module.'): value for key, value in state.items()}}


def load_task(model: nn.Module, state: Mapping[str, Tensor], path: str) -> None:
    """Load the task model: every entry must fit in shape, and none may be left over.

    A training wrapper around the model keeps its own state, and the state of a wrapper in the
    checkpoint is ignored: a searched or retrained network loads under any of its configs. Entries
    that the model's own loading converts (old keys, position embeddings) are converted.

    Args:
        model (nn.Module): Task model, also in a wrapper.
        state (Mapping[str, Tensor]): Of the checkpoint.
        path (str): Of the checkpoint, for messages.

    Raises:
        ValueError: The state does not fit, or has values that are not finite.
    """
    task = find_task(model)
    kept = {key: value for key, value in state.items() if not key.startswith(TRAINING_STATE)}
    if _has_gates(task.state_dict()) and not _has_gates(kept):
        raise ValueError(f'expected a checkpoint of a search, as the config is one, found `{path}` '
                         'without gates')
    wrong = _misfits(task, kept, path)
    # such as output norms of other levels
    keys = getattr(getattr(task, 'backbone', None), 'optional_keys', NO_KEY)
    optional = re.compile(rf'backbone\.(?:{keys})')
    wrong['unexpected'] = [key for key in wrong['unexpected'] if not optional.match(key)]
    refuse(_of(task, path), wrong)


def load_run(model: nn.Module, state: Mapping[str, Tensor], path: str) -> None:
    """Load a run's whole model, including the state of its training wrapper.

    Arguments are those of :func:`load_task`: ``model``, ``state`` and ``path``.
    """
    wrong = _misfits(unwrap(model), state, path)
    del wrong['unexpected']
    refuse(_of(find_task(model), path), wrong)


def load_start(model: nn.Module, state: Mapping[str, Tensor], path: str) -> None:
    """Load the weights that a training starts from (``load_from``).

    At least half of the backbone's entries must be there, and none in another shape; entries of
    gates count if the file has gates. A head for other classes may differ. Missing entries keep
    their initial values, as in the host libraries. Arguments are those of :func:`load_task`:
    ``model``, ``state`` and ``path``.

    Raises:
        ValueError: Too few entries, or some of another shape.
    """
    task = find_task(model)
    names = [name for name in task.state_dict() if name.startswith(BACKBONE)]
    # a model without `backbone.`, such as a bare backbone
    names = names or list(task.state_dict())
    if not _has_gates(state):  # a dense network has none: they are no sign of another network
        names = [name for name in names if not _has_gates([name])]
    wrong = _misfits(unwrap(model), state, path)
    absent = sorted(set(names) & set(wrong['missing']))
    if 2 * len(absent) > len(names):
        raise ValueError(f'expected weights to start from for the {type(task).__name__} in '
                         f'`{path}`, found {len(names) - len(absent) or "none"} of its '
                         f'{len(names)} entries: not `{absent[0]}`, but '
                         f'`{next(iter(state), "nothing")}`')
    refuse(_of(task, path), {'mis-shaped': [key for key in wrong['mis-shaped']
                                            if key.startswith(BACKBONE)]})


def _has_gates(state: Iterable[str]) -> bool:
    return any('.gate.' in key for key in state)


def _of(task: nn.Module, path: str) -> str:
    return f'a checkpoint of the {type(task).__name__} in `{path}`, found '


def _names_beside(model: nn.Module, state: Mapping[str, Tensor],
                  shaped: set[str]) -> tuple[list[str], list[str]]:
    """Missing and surplus names of a state in which entries ``shaped`` have other shapes.

    Torch reports the other shapes alone. So the state is loaded again without these entries.
    """
    rest = {name: value for name, value in state.items() if name not in shaped}
    try:
        missing, surplus = model.load_state_dict(rest, strict=False)
    except (AssertionError, RuntimeError, ValueError):  # entries that the model's loading renames
        return [], []
    return [name for name in missing if name not in shaped], surplus


def _misfits(model: nn.Module, state: Mapping[str, Tensor], path: str) -> dict[str, list[str]]:
    """Load entries that fit; return the names of the others, by their fault."""
    missing, surplus, shaped = [], [], []
    try:
        missing, surplus = load_named(model, state, path)
    except (AssertionError, RuntimeError) as error:  # hosts assert the sizes of position tables
        # torch reports differing shapes as text only
        shaped = _SIZE.findall(str(error))
        if not shaped:
            raise ValueError(
                f'expected a checkpoint of the {type(find_task(model)).__name__}, found `{path}` '
                f'of another ({one_line(error)})') from error
        missing, surplus = _names_beside(model, state, {name for name, *_ in shaped})
    bare = 'architecture.'  # of our wrappers, not in checkpoints
    return {'missing': [name.removeprefix(bare) for name in missing if not RECOMPUTED.match(name)],
            'unexpected': surplus,
            'mis-shaped': [f'{name.removeprefix(bare)} {there} for {here}'
                           for name, there, here in shaped]}

"""Loading a checkpoint into a model: whole, or not at all."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mmkcr.core import check_finite_state
from .backbone_loading import NO_KEY, RECOMPUTED
from .tasks import find_task, unwrap

#: State that training wrappers keep beside the task model's: no task model needs it.
TRAINING_STATE = ('regularizers.', 'price.', 'reconstruction.', '_extra_state')
_SIZE = re.compile(r'size mismatch for (\S+): copying a param with shape torch\.Size\((.*?)\) from '
                   r'checkpoint, the shape in current model is torch\.Size\((.*?)\)\.')


def weights_of(checkpoint: Mapping[str, Any], path: str) -> dict[str, Tensor]:
    """The ``state_dict`` of a checkpoint; with MMEngine's ``EMAHook`` the averaged weights.

    Raises:
        ValueError: It has no weights; the message names the file ``path``.
    """
    state = checkpoint.get('state_dict', checkpoint)
    if not isinstance(state, Mapping):
        raise ValueError(f'expected a checkpoint with tensors by name at `{path}`, found a '
                         f'`{type(state).__name__}` as its `state_dict`')
    return {key.removeprefix('module.'): value for key, value in state.items()}


def load_task(model: nn.Module, state: Mapping[str, Tensor], path: str) -> None:
    """Load the task model: every entry must fit in shape, and none may be left over.

    A training wrapper around the model keeps its own state, and that of a wrapper in the
    checkpoint is ignored: what was searched or retrained loads under any of its configs. Entries
    that the model's own loading converts (old keys, position embeddings) are converted.

    Args:
        model (nn.Module): A task model, possibly wrapped.
        state (Mapping[str, Tensor]): See :func:`weights_of`.
        path (str): The file, for the message.

    Raises:
        ValueError: It does not fit, or has values that are not finite; the first entry is named.
    """
    task = find_task(model)
    kept = {key: value for key, value in state.items() if not key.startswith(TRAINING_STATE)}
    if _has_gates(task.state_dict()) and not _has_gates(kept):
        raise ValueError(f'expected a checkpoint of a search, as the config is one, found `{path}` '
                         'without gates')
    missing, surplus, shaped = _try(task, kept, path)
    # such as output norms of other levels
    keys = getattr(getattr(task, 'backbone', None), 'optional_keys', NO_KEY)
    optional = re.compile(rf'backbone\.(?:{keys})')
    _refuse(task, path, missing, shaped, [key for key in surplus if not optional.match(key)])


def load_run(model: nn.Module, state: Mapping[str, Tensor], path: str) -> None:
    """Load a run's whole model, including the state of its training wrapper.

    Arguments and errors are those of :func:`load_task`.
    """
    model = unwrap(model)
    missing, _, shaped = _try(model, state, path)
    _refuse(find_task(model), path, missing, shaped)


def load_start(model: nn.Module, state: Mapping[str, Tensor], path: str) -> None:
    """Load the weights that a training starts from (``load_from``), see :func:`load_task`.

    At least half of the backbone's entries must be there, in their shapes; those of gates count if
    the file has gates. A head for other classes may differ. Missing entries keep their initial
    values, as in the host libraries.

    Raises:
        ValueError: An entry of the backbone has another shape, most of them are not there, or
            there are values that are not finite.
    """
    model = unwrap(model)
    task = find_task(model)
    names = [name for name in task.state_dict() if name.startswith('backbone.')]
    # a model without `backbone.`, such as a bare backbone
    names = names or list(task.state_dict())
    if not _has_gates(state):  # a dense network has none: they are no sign of another network
        names = [name for name in names if not _has_gates([name])]
    missing, _, shaped = _try(model, state, path)
    absent = sorted(set(names) & set(missing))
    if 2 * len(absent) > len(names):
        raise ValueError(f'expected weights to start from for the {type(task).__name__} in '
                         f'`{path}`, found {len(names) - len(absent) or "none"} of its '
                         f'{len(names)} entries: not `{absent[0]}`, but '
                         f'`{next(iter(state), "nothing")}`')
    _refuse(task, path, (), [entry for entry in shaped if entry[0].startswith('backbone.')])


def _has_gates(state: Iterable[str]) -> bool:
    return any('.gate.' in key for key in state)


def _try(model: nn.Module, state: Mapping[str, Tensor],
         path: str) -> tuple[list[str], list[str], list[tuple[str, str, str]]]:
    """Load what fits; return missing names, surplus names, and names and shapes that differ."""
    check_finite_state(state, path, model.state_dict())
    missing, surplus, shaped = [], [], []
    try:
        missing, surplus = model.load_state_dict(dict(state), strict=False)
    except ValueError as error:  # a searchable backbone says itself what is wrong
        error.args = (f'{error} of `{path}`', )
        raise
    except (AssertionError, RuntimeError) as error:  # hosts assert the sizes of position tables
        # torch reports differing shapes as text only
        shaped = _SIZE.findall(str(error))
        if not shaped:
            raise ValueError(
                f'expected a checkpoint of the {type(find_task(model)).__name__}, found `{path}` '
                f'of another ({" ".join(str(error).split()):.300})') from error
    bare = 'architecture.'  # of our wrappers, not in checkpoints
    return ([name.removeprefix(bare) for name in missing if not RECOMPUTED.match(name)], surplus,
            [(name.removeprefix(bare), *shapes) for name, *shapes in shaped])


def _refuse(task: nn.Module, path: str, missing: Sequence[str],
            shaped: Sequence[tuple[str, str, str]], surplus: Sequence[str] = ()) -> None:
    if shaped:
        name, shape, wanted = shaped[0]
        reason = (f'`{name}` of shape {shape}, not {wanted}, and {len(shaped) - 1} more that '
                  'differ')
    elif missing:
        has = f', but `{surplus[0]}` and {len(surplus) - 1} others' if surplus else ''
        reason = f'none of its entry `{missing[0]}` and of {len(missing) - 1} others{has}'
    elif surplus:
        reason = f'the entry `{surplus[0]}` and {len(surplus) - 1} others that it does not have'
    else:
        return
    raise ValueError(f'expected a checkpoint of the {type(task).__name__} in `{path}`, found '
                     f'{reason}')

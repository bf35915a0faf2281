"""Separate optimizers for weights and gates."""

from collections.abc import Iterable

from mmengine.optim import OptimWrapper, OptimWrapperDict, build_optim_wrapper
from torch import nn

from mmkcr.models.tasks import unwrap
from mmkcr.registry import OPTIM_WRAPPER_CONSTRUCTORS

#: The two optimizers of a search.
KEYS = ('weights', 'architecture')


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class SearchOptimWrapperConstructor:
    """Builds the two optimizers of a search (KCR-Transformer, algorithm 1).

    ``architecture`` gets the gates, ``weights`` gets every other parameter. Each part is built like
    an ordinary ``optim_wrapper``, with its own type, optimizer, ``clip_grad``,
    ``accumulative_counts``, ``paramwise_cfg`` and ``constructor``.

    Args:
        optim_wrapper_cfg (dict): With the keys ``weights`` and
            ``architecture``, each the config of an optimizer wrapper.
        paramwise_cfg (dict, optional): Must be None: it belongs into a part.

    Raises:
        ValueError: Other keys, or a ``paramwise_cfg`` outside the parts.

    Examples:
        >>> optim_wrapper = dict(
        ...     constructor='mmkcr.SearchOptimWrapperConstructor',
        ...     weights=dict(
        ...         type='OptimWrapper',
        ...         optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.01),
        ...         paramwise_cfg=dict(norm_decay_mult=0.)),
        ...     architecture=dict(
        ...         optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.)))
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        if set(optim_wrapper_cfg) != set(KEYS):
            raise ValueError('expected the keys `weights` and `architecture` in `optim_wrapper`, '
                             f'found {sorted(optim_wrapper_cfg)}')
        if paramwise_cfg is not None:
            raise ValueError('expected `paramwise_cfg` inside `optim_wrapper.weights` or '
                             '`optim_wrapper.architecture`, found it beside them')
        self.optim_wrapper_cfg = optim_wrapper_cfg

    def __call__(self, model: nn.Module) -> OptimWrapperDict:
        """Build the optimizers of a model that offers ``gate_parameters()``; may be wrapped.

        Raises:
            ValueError: The model has no gates.
        """
        module = unwrap(model)
        gates = gate_parameters(module)
        known = set(map(id, gates))
        others = [param for param in module.parameters() if id(param) not in known]
        wrappers = {}
        for key, foreign in zip(KEYS, (gates, others)):
            # for the whole module, as `paramwise_cfg` works by names
            wrappers[key] = build_optim_wrapper(module, self.optim_wrapper_cfg[key])
            take_out(wrappers[key], foreign)
        return OptimWrapperDict(**wrappers)


def gate_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of the gates of a model that is not wrapped; refuses one without."""
    gates = list(module.gate_parameters()) if hasattr(module, 'gate_parameters') else []
    if not gates:
        raise ValueError('expected a model with gates to search on (`mmkcr.SearchModel`), found '
                         f'none in `{type(module).__name__}`')
    return gates


def take_out(wrapper: OptimWrapper, parameters: Iterable[nn.Parameter]) -> None:
    """Take parameters out of a new optimizer, in whichever groups they are."""
    optimizer, foreign = wrapper.optimizer, set()
    for param in parameters:
        foreign.add(id(param))
        optimizer.state.pop(param, None)
    for group in optimizer.param_groups:
        group['params'] = [param for param in group['params'] if id(param) not in foreign]
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group['params']]

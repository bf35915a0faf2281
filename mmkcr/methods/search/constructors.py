"""Optimizers of weights and gates, with settings of their own for the gates."""

from collections.abc import Iterable

from mmengine.optim import OptimWrapper, OptimWrapperDict, build_optim_wrapper
from torch import nn

from mmkcr.core import BaseGate
from mmkcr.models.tasks import find_task, unwrap
from mmkcr.registry import OPTIM_WRAPPER_CONSTRUCTORS

#: The two optimizers of a search.
KEYS = ('weights', 'architecture')


def gate_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Parameters of the gates of a model that is not wrapped; a model without gates is refused."""
    gates = list(module.gate_parameters()) if hasattr(module, 'gate_parameters') else []
    if not gates:
        raise ValueError('expected a model with gates to search on (`mmkcr.SearchModel`), found '
                         f'none in `{type(module).__name__}`')
    return gates


def _without(parameters: Iterable[nn.Parameter],
             others: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    known = set(map(id, others))
    return [parameter for parameter in parameters if id(parameter) not in known]


def _take_out(wrapper: OptimWrapper, parameters: list[nn.Parameter]) -> None:
    """Take parameters out of a new optimizer, in whichever groups they are."""
    optimizer = wrapper.optimizer
    for parameter in parameters:
        optimizer.state.pop(parameter, None)
    for group in optimizer.param_groups:
        group['params'] = _without(group['params'], parameters)
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group['params']]


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class SearchOptimWrapperConstructor:
    """Builds the two optimizers of a search (KCR-Transformer, algorithm 1).

    ``architecture`` gets the gates, ``weights`` every other parameter. Each part is built like an
    ordinary ``optim_wrapper``, with all that one may have.

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
        if set(optim_wrapper_cfg) != set(KEYS) or paramwise_cfg is not None:
            raise ValueError('expected the keys `weights` and `architecture` in `optim_wrapper`, '
                             'and `paramwise_cfg` inside `optim_wrapper.weights` or '
                             '`optim_wrapper.architecture`, found '
                             f'{sorted(optim_wrapper_cfg)} and {paramwise_cfg}')
        self.optim_wrapper_cfg = optim_wrapper_cfg

    def __call__(self, model: nn.Module) -> OptimWrapperDict:
        """Build the optimizers of a model that offers ``gate_parameters()``; may be wrapped."""
        module = unwrap(model)
        gates = gate_parameters(module)
        wrappers = {}
        for key, foreign in zip(KEYS, (gates, _without(module.parameters(), gates))):
            # for the whole module, as `paramwise_cfg` works by names
            wrappers[key] = build_optim_wrapper(module, self.optim_wrapper_cfg[key])
            _take_out(wrappers[key], foreign)
        return OptimWrapperDict(**wrappers)


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class JointOptimWrapperConstructor:
    """Builds the single optimizer of a search without a split (Once-for-Both, algorithm 1).

    It is an ordinary ``optim_wrapper``, but that the gates' parameters have a group of their own.

    Args:
        optim_wrapper_cfg (dict): Config of an optimizer wrapper, with ``architecture``, the options
            of the gates' group. Its defaults are ``betas=(0.5, 0.999)`` and ``weight_decay=0``; all
            others are those of ``optimizer``. Its entry ``importance`` holds options that differ
            for the gates' importance S, such as ``betas=(0.9, 0.999)`` in the public code.
        paramwise_cfg (dict, optional): See the host's constructor.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        self.config = dict(optim_wrapper_cfg, paramwise_cfg=paramwise_cfg)
        self.architecture = {'betas': (0.5, 0.999), 'weight_decay': 0.,
                             **self.config.pop('architecture', {})}
        self.importance = self.architecture.pop('importance', None)

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """Build the optimizer of a model that offers ``gate_parameters()``; may be wrapped.

        Its last parameter group holds the gates; with ``importance`` the last two hold the gates'
        sizes and their importance.
        """
        module = unwrap(model)
        gates = gate_parameters(module)
        wrapper = build_optim_wrapper(module, self.config)
        _take_out(wrapper, gates)
        # S and alpha of one gate may have different settings
        apart = [gate.importance for gate in module.gates().values()] if self.importance else []
        wrapper.optimizer.add_param_group({**self.architecture, 'params': _without(gates, apart)})
        if apart:
            wrapper.optimizer.add_param_group(
                {**self.architecture, **self.importance, 'params': apart})
        return wrapper


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class TaskOptimWrapperConstructor:
    """Builds an optimizer as a host's constructor does without the wrapper.

    The hosts' constructors of rates by layer ask the model for its ``backbone`` or its
    ``get_layer_depth``, and read depths from names that begin with ``backbone.``. So they see the
    task model; parameters of the wrapper, such as those of regularisers, get groups with the base
    learning rate. These constructors know no ``lr_mult``. So gates that ``custom_keys`` names, as a
    method does, are taken out of their groups: they and parameters of the wrapper learn at
    ``lr_mult`` times the base learning rate, at every depth, and decay by ``decay_mult``.

    Args:
        optim_wrapper_cfg (dict): Config of the optimizer wrapper, with the key ``of_task``, the
            host's constructor.
        paramwise_cfg (dict, optional): The host's, with ``custom_keys`` for gates.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        self.config = dict(optim_wrapper_cfg, paramwise_cfg=paramwise_cfg)
        self.config['constructor'] = self.config.pop('of_task')

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """Build the optimizer of a task model, also in a training or a distributed wrapper."""
        model = unwrap(model)
        task = find_task(model)
        wrapper = build_optim_wrapper(task, self.config)
        defaults = wrapper.optimizer.defaults
        keys = (self.config['paramwise_cfg'] or {}).get('custom_keys') or {}
        inside = set(map(id, task.parameters()))
        gates = {id(parameter) for module in task.modules() if isinstance(module, BaseGate)
                 for parameter in module.parameters()}
        groups = []
        for name, parameter in model.named_parameters():
            # of several keys the longest counts, as everywhere
            key = max((key for key in keys if key in name), key=len, default=None)
            apart = id(parameter) not in inside or id(parameter) in gates and key is not None
            if parameter.requires_grad and apart:
                factors = keys.get(key, {})
                groups.append(dict(
                    params=[parameter], param_names=[name],
                    lr=defaults['lr'] * factors.get('lr_mult', 1.),
                    weight_decay=defaults['weight_decay'] * factors.get('decay_mult', 1.)))
        _take_out(wrapper, [parameter for group in groups for parameter in group['params']])
        for group in groups:
            # PyTorch wants names in all groups or in none
            if 'param_names' not in wrapper.optimizer.param_groups[0]:
                del group['param_names']
            wrapper.optimizer.add_param_group(group)
        return wrapper

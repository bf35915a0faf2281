"""Optimizers of weights and gates, with settings of their own for the gates."""

from collections.abc import Iterable, Mapping
from typing import Any

from mmengine.optim import OptimWrapper, OptimWrapperDict, build_optim_wrapper
from torch import nn

from mmkcr.core import BaseGate
from mmkcr.models.tasks import find_task, unwrap
from mmkcr.registry import OPTIM_WRAPPER_CONSTRUCTORS

#: The two optimizers of a search.
KEYS = ('weights', 'architecture')


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


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class JointOptimWrapperConstructor:
    """Builds the single optimizer of a search without a split (Once-for-Both, algorithm 1).

    The optimizer is built as the host builds an ordinary ``optim_wrapper``. Then
    the gates' parameters move to their own parameter group.

    Args:
        optim_wrapper_cfg (dict): Config of an optimizer wrapper, with ``architecture``, the options
            of the gates' group. Its defaults are ``betas=(0.5, 0.999)`` and ``weight_decay=0``; all
            others are those of ``optimizer``. Its entry ``importance`` holds options that differ
            for the gates' importance S, such as ``betas=(0.9, 0.999)`` in the public code.
        paramwise_cfg (dict, optional): See the host's constructor.

    Examples:
        >>> optim_wrapper = dict(
        ...     constructor='mmkcr.JointOptimWrapperConstructor',
        ...     optimizer=dict(type='AdamW', lr=1e-3, weight_decay=1e-3),
        ...     architecture=dict(lr=2e-2))
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        self.config: dict[str, Any] = dict(optim_wrapper_cfg, paramwise_cfg=paramwise_cfg)
        given = self.config.pop('architecture', {})
        self.architecture = {'betas': (0.5, 0.999), 'weight_decay': 0., **given}
        self.importance = self.architecture.pop('importance', None)

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """Build the optimizer of a model that offers ``gate_parameters()``; may be wrapped.

        Returns:
            OptimWrapper: Its last parameter group holds the gates; with ``importance`` its last
            two hold the gates' sizes and their importance.

        Raises:
            ValueError: The model has no gates.
        """
        module = unwrap(model)
        gates = gate_parameters(module)
        wrapper = build_optim_wrapper(module, self.config)
        take_out(wrapper, gates)
        # S and alpha of one gate may have different settings
        apart = [gate.importance for gate in module.gates().values()] if self.importance else []
        known = set(map(id, apart))
        wrapper.optimizer.add_param_group(
            {**self.architecture, 'params': [gate for gate in gates if id(gate) not in known]})
        if apart:
            wrapper.optimizer.add_param_group(
                {**self.architecture, **self.importance, 'params': apart})
        return wrapper


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class TaskOptimWrapperConstructor:
    """Builds an optimizer as a host's constructor does without the wrapper.

    The hosts' constructors of rates by layer ask the model for its ``backbone`` or its
    ``get_layer_depth``, and read depths from names that begin with ``backbone.``. So they see the
    task model; parameters of the wrapper, such as those of regularisers, join in a group of their
    own with the base learning rate. These constructors know no ``lr_mult``. So gates that
    ``custom_keys`` names, as a method does, are taken out of their groups: they learn at
    ``lr_mult`` times the base learning rate, at every depth, and decay by ``decay_mult``.

    Args:
        optim_wrapper_cfg (dict): Config of the optimizer wrapper, with the key ``of_task``, the
            host's constructor.
        paramwise_cfg (dict, optional): The host's, with ``custom_keys`` for gates. Defaults to
            None.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        self.config = dict(optim_wrapper_cfg, paramwise_cfg=paramwise_cfg)
        self.config['constructor'] = self.config.pop('of_task')

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """Build the optimizer of a task model, also in a training or a distributed wrapper."""
        model = unwrap(model)
        task = find_task(model)
        built = build_optim_wrapper(task, self.config)
        groups = self._gate_groups(task, built.optimizer.defaults)
        take_out(built, [parameter for group in groups for parameter in group['params']])
        inside = set(map(id, task.parameters()))
        rest = {name: parameter for name, parameter in model.named_parameters()
                if parameter.requires_grad and id(parameter) not in inside}
        if rest:
            groups.append(dict(params=list(rest.values()), param_names=list(rest)))
        for group in groups:
            # PyTorch wants names in all groups or in none
            if 'param_names' not in built.optimizer.param_groups[0]:
                del group['param_names']
            built.optimizer.add_param_group(group)
        return built

    def _gate_groups(self, task: nn.Module, defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A group for each gate parameter that a key of ``custom_keys`` is part of the name of."""
        keys = (self.config['paramwise_cfg'] or {}).get('custom_keys') or {}
        gates = {id(parameter) for module in task.modules() if isinstance(module, BaseGate)
                 for parameter in module.parameters()}
        groups = []
        for name, parameter in task.named_parameters():
            # of several keys the longest counts, as everywhere
            key = max((key for key in keys if key in name), key=len, default=None)
            if id(parameter) in gates and parameter.requires_grad and key is not None:
                groups.append(dict(
                    params=[parameter], param_names=[name],
                    lr=defaults['lr'] * keys[key].get('lr_mult', 1.),
                    weight_decay=defaults['weight_decay'] * keys[key].get('decay_mult', 1.)))
        return groups

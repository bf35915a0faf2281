"""A host's own constructor of optimizers, for a task model inside a training wrapper."""

from collections.abc import Mapping
from typing import Any

from mmengine.optim import OptimWrapper, build_optim_wrapper
from torch import nn

from mmkcr.core import BaseGate
from mmkcr.models.tasks import find_task, unwrap
from mmkcr.registry import OPTIM_WRAPPER_CONSTRUCTORS
from .search_constructor import take_out


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

"""A host's own constructor of optimizers, for a task model inside a training wrapper."""

from typing import Dict, Optional

from mmengine.optim import OptimWrapper, build_optim_wrapper
from torch import nn

from mmkcr.models.utils import find_task, unwrap
from mmkcr.registry import OPTIM_WRAPPER_CONSTRUCTORS


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class TaskOptimWrapperConstructor:
    """Builds an optimizer as a host's constructor does without the wrapper.

    The hosts' constructors of rates by layer ask the model for its ``backbone`` or its
    ``get_layer_depth``, and read depths from names that begin with ``backbone.``. So they see the
    task model; parameters of the wrapper, such as those of regularisers, join in a group of their
    own with the base learning rate.

    Args:
        optim_wrapper_cfg (dict): Config of the optimizer wrapper, with the key ``of_task``, the
            host's constructor.
        paramwise_cfg (dict, optional): The host's. Defaults to None.
    """

    def __init__(self, optim_wrapper_cfg: Dict, paramwise_cfg: Optional[Dict] = None) -> None:
        self.config = dict(optim_wrapper_cfg, paramwise_cfg=paramwise_cfg)
        self.config['constructor'] = self.config.pop('of_task')

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """Build the optimizer.

        Args:
            model (nn.Module): A task model, a training wrapper around one, or either in a
                distributed wrapper.
        """
        model = unwrap(model)
        task = find_task(model)
        built = build_optim_wrapper(task, self.config)
        inside = {id(parameter) for parameter in task.parameters()}
        rest = {name: parameter for name, parameter in model.named_parameters()
                if parameter.requires_grad and id(parameter) not in inside}
        if rest:
            group = dict(params=list(rest.values()))
            if 'param_names' in built.optimizer.param_groups[0]:  # PyTorch wants it in all or none
                group['param_names'] = list(rest)
            built.optimizer.add_param_group(group)
        return built

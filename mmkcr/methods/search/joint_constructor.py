"""One optimizer for weights and gates, with separate settings for the gates."""

from typing import Any

from mmengine.optim import OptimWrapper, build_optim_wrapper
from torch import nn

from mmkcr.models.tasks import unwrap
from mmkcr.registry import OPTIM_WRAPPER_CONSTRUCTORS
from .search_constructor import gate_parameters, take_out


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

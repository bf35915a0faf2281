"""Multiply-accumulates: counted, and as a differentiable function of the gates.

MACs are what mmpretrain's and the papers' tables call FLOPs: half of the
floating point operations of every matrix product and convolution, attention
products included.
"""

from contextlib import ExitStack
from typing import Any, Callable, Dict, Mapping, NamedTuple, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from .added import added_layers
from .sites import searchable_layers


class MacsReport(NamedTuple):
    """MACs of one forward.

    Args:
        total (int): Of the whole model.
        modules (dict[str, int]): By module path; a module includes its
            children. Only modules that do matrix products appear.
        operators (dict[str, int]): By operator name.
    """

    total: int
    modules: Dict[str, int]
    operators: Dict[str, int]


def count_forward_macs(model: nn.Module, forward: Callable[[], Any]) -> MacsReport:
    """Count the MACs of a forward call, in eval mode and without gradients.

    Args:
        model (nn.Module): Its mode is restored afterwards.
        forward (Callable): Runs ``model`` once.

    Returns:
        MacsReport: The counts.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    counter = FlopCounterMode(display=False)
    try:
        # the counter knows matrix products, and not every device's fused attention
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            forward()
    finally:
        for module, mode in modes.items():
            module.training = mode
    by_module = {name: sum(ops.values()) // 2 for name, ops in counter.get_flop_counts().items()}
    by_operator = {str(op): flops // 2
                   for op, flops in counter.get_flop_counts().get('Global', {}).items()}
    prefix = model.__class__.__name__ + '.'
    modules = {name[len(prefix):]: macs for name, macs in by_module.items()
               if name.startswith(prefix)}
    return MacsReport(counter.get_total_flops() // 2, modules, by_operator)


def count_params(model: nn.Module) -> int:
    """Number of parameters, without buffers."""
    return sum(parameter.numel() for parameter in model.parameters())


class MacsModel:
    """MACs of the subnet as a closed form of the sizes of its sites.

    One forward gives the count of the supernet as it is and the input shape of
    every searchable layer; the layers' own formulas, of their own sizes and of
    those that they are coupled with, do the rest. Calling the object with
    integers gives exactly the count of the built subnet, with tensors a
    differentiable expectation (exact where choices are independent and no site
    meets itself in a product). A supernet that was sliced while it trains
    keeps the formula: ``dense`` is the count of its full sizes, without layers
    that the method adds and that the dense parent lacks (``added``).

    Args:
        model (nn.Module): The supernet, or a task model around it.
        root (nn.Module): The module that the sites' names start from, usually
            the backbone; ``model`` or a descendant of it.
        forward (Callable): Runs ``model`` once on a batch of one.

    Raises:
        ValueError: There is no searchable layer below ``root``, or one that
            the forward does not reach.
    """

    def __init__(self, model: nn.Module, root: nn.Module, forward: Callable[[], Any]) -> None:
        self.layers = searchable_layers(root)
        if not self.layers:
            raise ValueError(f'expected a backbone with gates, found no searchable layer in '
                             f'`{root.__class__.__name__}`')
        self.shapes: Dict[str, Tuple[int, ...]] = {}
        with ExitStack() as stack:
            for name, layer in self.layers.items():
                handle = layer.register_forward_pre_hook(self._recorder(name))
                stack.callback(handle.remove)
                stack.callback(setattr, layer.gate, 'held_open', layer.gate.held_open)
                layer.gate.held_open = True
            present = count_forward_macs(model, forward)
        missed = sorted(set(self.layers) - set(self.shapes))
        if missed:
            raise ValueError(f'expected the forward to reach every site, found that site '
                             f'`{missed[0]}` was not')
        self.fixed = present.total - self._gated(
            {name: layer.gate.present for name, layer in self.layers.items()})
        self.added = sum(present.modules.get(name, 0) for name in added_layers(model))
        self.dense = self({name: layer.gate.total
                           for name, layer in self.layers.items()}) - self.added

    def _recorder(self, name: str) -> Callable:
        def record(_: nn.Module, inputs: Tuple[Tensor, ...]) -> None:
            self.shapes[name] = tuple(inputs[0].shape)

        return record

    def site_macs(self, name: str, sizes: Mapping[str, Union[int, Tensor]]) -> Union[int, Tensor]:
        """MACs of one searchable layer.

        Args:
            name (str): Its site.
            sizes (Mapping[str, int | Tensor]): Kept units of the site and of
                those that it is coupled with.
        """
        layer = self.layers[name]
        coupled = {role: sizes[site] for role, site in layer.couplings.items()}
        return layer.macs(sizes[name], self.shapes[name], **coupled)

    def _gated(self, sizes: Mapping[str, Union[int, Tensor]]) -> Union[int, Tensor]:
        return sum(self.site_macs(name, sizes) for name in self.layers)

    def __call__(self, sizes: Mapping[str, Union[int, Tensor]]) -> Union[int, Tensor]:
        """MACs of the whole model.

        Args:
            sizes (Mapping[str, int | Tensor]): Kept units of every site.

        Returns:
            int | Tensor: A count for integers, a differentiable scalar for
            tensors.
        """
        return self.fixed + self._gated(sizes)

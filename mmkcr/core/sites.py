"""Searchable layers: the contract between gates, MACs and slicing."""

from abc import ABCMeta, abstractmethod
from typing import Dict, Mapping, Sequence, TypeVar

from torch import Tensor, nn

from .gate import BaseGate

Count = TypeVar('Count', int, Tensor)


class SearchableLayer(nn.Module, metaclass=ABCMeta):
    """A layer of a supernet whose ``gate`` selects units of one dimension.

    A layer's cost may depend on other sites too, such as that of an MLP on the
    width of the residual stream: ``couplings`` names them by role, and
    :meth:`macs` gets their sizes as keyword arguments.
    """

    gate: BaseGate

    #: Sites whose sizes :meth:`macs` needs beside the layer's own, by role.
    couplings: Mapping[str, str] = {}

    @abstractmethod
    def macs(self, size: Count, input_shape: Sequence[int], **coupled: Count) -> Count:
        """Multiply-accumulates of the layer when ``size`` units are kept.

        Args:
            size (int | Tensor): Units kept; a tensor makes the count
                differentiable.
            input_shape (Sequence[int]): Shape of the layer's first input, with
                a batch of one.
            **coupled (int | Tensor): Units kept of every site in
                ``couplings``, by role.
        """

    def paper_cost(self, size: Count, input_shape: Sequence[int]) -> Count:
        """The method's own cost term for this layer; arguments as in :meth:`macs`.

        Raises:
            ValueError: The method's cost is that of :meth:`macs`.
        """
        raise ValueError('expected `cost="macs"` for a layer without a cost term of its own, found '
                         f'`cost="paper"` at `{self.__class__.__name__}`')


def searchable_layers(root: nn.Module) -> Dict[str, SearchableLayer]:
    """The searchable layers below ``root`` by module path, in forward order."""
    return {
        name: module
        for name, module in root.named_modules() if isinstance(module, SearchableLayer)
    }

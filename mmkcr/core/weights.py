"""Parameters and bytes as functions of the sizes of sites: counted, and differentiable."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from .added import added_layers
from .macs import MacsModel
from .products import ProductsModel
from .sites import Cost, Site
from .structure import KEPT


class ParamsModel(ProductsModel):
    """Parameters of the subnet as a closed form of the sizes of its sites.

    The size of a tensor is the product of its sides, see :class:`ProductsModel`. Integer sizes give
    exactly the count of the built subnet, but for tensors with one entry per head, which are
    counted with all heads.

    Gates do not count. Layers that a method adds count for the subnet, but not for ``dense``.

    Args:
        model (nn.Module): The supernet or dense host, or a task model around it.
        sites (Mapping[str, Site]): See :class:`ProductsModel`.
        without (Sequence[nn.Module]): Modules that do not count. Defaults to none.
    """

    name, noun, multiple, scale = 'params', 'parameters', 'M', 10**6

    def __init__(self, model: nn.Module, sites: Mapping[str, Site],
                 without: Sequence[nn.Module] = ()) -> None:
        super().__init__(sites)
        # what one number costs in kinds with a closed form of their own
        self._units = {name: self._unit(next(self.sites[name].owner.parameters()))
                       for name in self._forms}
        apart = [site.gate for site in self.sites.values() if site.gate is not None]
        apart += [self.sites[name].owner for name in self._forms]
        left_out = self._ids(*apart, *without)
        added_ids, added = self._ids(*added_layers(model).values()) - left_out, 0
        sides = self._sides(lambda axis: id(axis.value))  # by id, as tensors may be shared
        for value in self._tensors(model):
            cost = value.numel() * self._unit(value)
            if id(value) in sides:
                self._add(cost, sides[id(value)])
            elif id(value) not in left_out:
                self.fixed += cost
            added += cost if id(value) in added_ids else 0
        self.dense = self({name: site.total for name, site in self.sites.items()}) - added

    def _ids(self, *modules: nn.Module) -> set[int]:
        return {id(value) for module in modules for value in self._tensors(module)}

    def _tensors(self, module: nn.Module) -> list[Tensor]:
        """The tensors of a module that count."""
        return list(module.parameters())

    def _unit(self, value: Tensor) -> int:
        """Cost of one number of a tensor."""
        return 1

    def _form(self, name: str, size: Cost) -> Cost:
        return self.sites[name].params(size) * self._units[name]


def state_tensors(module: nn.Module) -> list[Tensor]:
    """The tensors of a network's ``state_dict``, without the digest of a subnet's units."""
    return [value for name, value in module.state_dict(keep_vars=True).items()
            if isinstance(value, Tensor) and name.rpartition('.')[2] != KEPT]


def state_bytes(module: nn.Module) -> int:
    """Bytes of :func:`state_tensors`, without a file's overhead."""
    return sum(value.numel() * value.element_size() for value in state_tensors(module))


class BytesModel(ParamsModel):
    """Bytes of the subnet's ``state_dict``: parameters and buffers.

    A checkpoint file adds a few kilobytes, with a digest of the kept units. Arguments and
    attributes as in :class:`ParamsModel`.
    """

    name, noun, suffix = 'bytes', 'bytes', 'B'

    def _tensors(self, module: nn.Module) -> list[Tensor]:
        return state_tensors(module)

    def _unit(self, value: Tensor) -> int:
        return value.element_size()

#: Costs that can be counted, so that a budget of them needs no table of latencies.
COUNTED = {cls.name: cls for cls in (MacsModel, ParamsModel, BytesModel)}

"""Parameters and bytes as functions of the sizes of sites: counted, and differentiable."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from .added import added_layers
from .cost import CostModel
from .macs import MacsModel
from .sites import Cost, Site
from .structure import KEPT

#: Length of a side of a tensor: a constant part, and by site the entries per unit.
Side = tuple[int, tuple[tuple[str, int], ...]]
#: By dimension of a tensor, for each site along it: name, present entries, and entries per unit.
Sides = dict[int, list[tuple[str, int, int]]]


class ParamsModel(CostModel):
    """Parameters of the subnet as a closed form of the sizes of its sites.

    The size of a tensor is the product of its sides, and each side is a constant plus some entries
    per unit of the sites along it. Integer sizes give exactly the count of the built subnet, but
    for tensors with one entry per head, which are counted with all heads.

    Gates do not count. Layers that a method adds count for the subnet, but not for ``dense``.

    Args:
        model (nn.Module): The supernet or dense host, or a task model around it.
        sites (Mapping[str, Site]): As in :class:`~mmkcr.core.MacsModel`.
        without (Sequence[nn.Module]): Modules that do not count. Defaults to none.
    """

    name, noun, multiple, scale = 'params', 'parameters', 'M', 10**6

    def __init__(self, model: nn.Module, sites: Mapping[str, Site],
                 without: Sequence[nn.Module] = ()) -> None:
        self.sites = dict(sites)
        # kinds with a closed form of their own, and the cost of one of their numbers
        self._forms = {name: self._unit(next(site.owner.parameters()))
                       for name, site in self.sites.items() if site.has_own_macs}
        apart = [site.gate for site in self.sites.values() if site.gate is not None]
        apart += [site.owner for site in self.sites.values() if site.has_own_macs]
        left_out = self._ids(*apart, *without)
        added_ids = self._ids(*added_layers(model).values()) - left_out
        # every tensor is a term of sizes or part of the constant; by id, as tensors may be shared
        sized, self.fixed, added = self._sized(), 0, 0
        self.terms: dict[tuple[Side, ...], int] = {}
        for value in self._tensors(model):
            cost = value.numel() * self._unit(value)
            if id(value) in sized:
                self._add(value, sized[id(value)])
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

    def _sized(self) -> dict[int, Sides]:
        """The tensors along which sites lie, by id."""
        found: dict[int, Sides] = {}
        for name, site in self.sites.items():
            if site.has_own_macs:
                continue
            for axis in site.axes():
                if axis.value is None or axis.per > 1:  # `per`: shared entries, see the class
                    continue
                start, end = axis.span
                sides = found.setdefault(id(axis.value), {})
                sides.setdefault(axis.dim % axis.value.ndim, []).append(
                    (name, end - start, (end - start) // site.present))
        return found

    def _add(self, value: Tensor, sites: Sides) -> None:
        """Add a tensor to the terms; tensors with the same sides share one term."""
        sides = []
        for dim, parts in sorted(sites.items()):
            always = value.shape[dim] - sum(entries for _, entries, _ in parts)
            sides.append((always, tuple((name, each) for name, _, each in parts)))
        others = math.prod(length for dim, length in enumerate(value.shape) if dim not in sites)
        key = tuple(sorted(sides))
        self.terms[key] = self.terms.get(key, 0) + others * self._unit(value)

    def __call__(self, sizes: Mapping[str, Cost]) -> Cost:
        """See :class:`CostModel`."""
        def length(side: Side) -> Cost:
            return side[0] + sum(sizes[name] * each for name, each in side[1])

        return (self.fixed + sum(number * math.prod(map(length, sides))
                                 for sides, number in self.terms.items())
                + sum(self.sites[name].params(sizes[name]) * unit
                      for name, unit in self._forms.items()))


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

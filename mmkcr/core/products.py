"""Costs that are sums of products of the sizes of sites; parameters and bytes are two of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from .axes import Axis
from .cost import CostModel
from .sites import Cost, Site
from .structure import KEPT

#: By dimension of a tensor: its length, and the sites along it with their present entries.
Sides = dict[Any, tuple[int, list[tuple[str, int]]]]


class AddedLayer(nn.Module):
    """A layer of supernet and subnet that the dense parent lacks.

    Its MACs and parameters count for the subnet, but not for the dense model. A supernet must call
    it as a module, so that its MACs can be told apart.
    """


def added_layers(root: nn.Module) -> dict[str, AddedLayer]:
    """The added layers below ``root`` by module path, in their order."""
    return {name: module for name, module in root.named_modules() if isinstance(module, AddedLayer)}


class ProductsModel(CostModel):
    """A constant, products of sizes, and closed forms of the kinds that have one of their own.

    ``cost = c_0 + sum_i c_i prod_s (k_s / K_s)``, where k_s of K_s units are kept. Integer sizes
    give an exact integer, tensors a differentiable expectation. The formula stays valid for a
    supernet that is sliced while it trains.

    Args:
        sites (Mapping[str, Site]): Sites by name: sites with gates, or all of a dense host.
    """

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites = dict(sites)
        self.fixed = 0
        #: Cost at full sizes by the sites of a product; a site is there once for each of its sides.
        self.terms: dict[tuple[str, ...], int] = {}
        # a list: a set's order differs between processes, and so would the last bits of sums
        self._forms = [name for name, site in self.sites.items() if site.has_own_macs]

    def _form(self, name: str, size: Cost) -> Cost:
        """Cost of a site whose kind has a closed form."""
        raise NotImplementedError

    def _sides(self, key: Callable[[Axis], Any]) -> dict[Any, Sides]:
        """Sides of the tensors that sites lie along, by a key of their axes; None: left out."""
        merged: dict[Any, Sides] = {}
        for name, site in self.sites.items():
            for axis in () if name in self._forms else site.axes():
                # entries that units share (`per`) are counted with all units
                if axis.value is None or axis.per > 1 or (place := key(axis)) is None:
                    continue
                start, end = axis.span
                side = axis.dim % axis.value.ndim, (axis.value.shape[axis.dim], [])
                merged.setdefault(place, {}).setdefault(*side)[1].append((name, end - start))
        return merged

    def _add(self, cost: int, sides: Sides) -> None:
        """Add a term of the present cost; products of the same sites are one term."""
        shares: list[tuple[tuple[str, ...], int]] = [((), cost)]
        for length, parts in sides.values():
            along = [((name, ), entries) for name, entries in parts]
            along.append(((), length - sum(entries for _, entries in parts)))  # of no site
            shares = [((*names, *site), share * entries // length)
                      for names, share in shares for site, entries in along if entries]
        for names, share in shares:
            # counted at the present sizes, which are smaller if the supernet was sliced already
            for name in names:
                share = share * self.sites[name].total // self.sites[name].present
            key = tuple(sorted(names))
            self.terms[key] = self.terms.get(key, 0) + share

    def _term(self, names: tuple[str, ...], sizes: Mapping[str, Cost]) -> Cost:
        cost = self.terms[names]
        if all(isinstance(sizes[name], int) for name in names):
            full = math.prod(self.sites[name].total for name in names)
            return cost * math.prod(sizes[name] for name in names) // full  # exact: no floats
        for name in names:
            cost = cost * (sizes[name] / self.sites[name].total)
        return cost

    def __call__(self, sizes: Mapping[str, Cost]) -> Cost:
        """See :class:`CostModel`."""
        return (self.fixed + sum(self._term(names, sizes) for names in self.terms)
                + sum(self._form(name, sizes[name]) for name in self._forms))


class ParamsModel(ProductsModel):
    """Parameters of the subnet as a closed form of the sizes of its sites.

    The size of a tensor is the product of its sides, see :class:`ProductsModel`. Integer sizes give
    exactly the count of the built subnet, but tensors with one entry per head count with all heads.
    Gates and modules in ``without`` do not count, and :class:`AddedLayer` not for ``dense``.
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

    A checkpoint file adds a few kilobytes, with a digest of the kept units.
    """

    name, noun, suffix = 'bytes', 'bytes', 'B'

    def _tensors(self, module: nn.Module) -> list[Tensor]:
        return state_tensors(module)

    def _unit(self, value: Tensor) -> int:
        return value.element_size()

"""Costs that are sums of products of the sizes of sites."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from .axes import Axis
from .cost import CostModel
from .sites import Cost, Site

#: By dimension of a tensor: its length, and the sites along it with their present entries.
Sides = dict[Any, tuple[int, list[tuple[str, int]]]]


class ProductsModel(CostModel):
    """A constant, products of sizes, and closed forms of the kinds that have one of their own.

    ``cost = c_0 + sum_i c_i prod_s (k_s / K_s)``, where k_s of K_s units are kept. Integer sizes
    give an exact integer, tensors a differentiable expectation. The formula stays valid for a
    supernet that is sliced while it trains.

    Args:
        sites (Mapping[str, Site]): Sites by name: those with gates, or all of a dense host.
    """

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites = dict(sites)
        self.fixed = 0
        #: Cost at full sizes by the sites of a product; a site is there once for each of its sides.
        self.terms: dict[tuple[str, ...], int] = {}
        # a list, not a set: sums of floats depend on their order in the last bits, and the order of
        # a set of names differs between processes
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
        """Add what costs so much as of now; products of the same sites are one term."""
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

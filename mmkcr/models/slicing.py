"""Slicing of sites: for good, to a structure, or while a search trains.

The second is section 3.3 of Once for Both. Weights, moments of an optimizer and the gate's own
tensors are sliced together, so outputs do not change.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmkcr.core import Axis, SiteEntry, scale_axes, slice_axes
from .sites.base import HostSite

Sites = Mapping[str, HostSite]


def sites_that_slice(sites: Sites) -> dict[str, HostSite]:
    """The sites, by name, whose gates have them sliced while they train."""
    return {name: site for name, site in sites.items()
            if site.gate is not None and site.gate.slices}


def slice_to_entries(sites: Sites, entries: Mapping[str, SiteEntry]) -> None:
    """Slice sites for good: their gates leave, and the mask of a gate that slices is folded in.

    Args:
        sites (Mapping[str, HostSite]): Dense, or with gates, by name.
        entries (Mapping[str, SiteEntry]): Of a structure, for some of the sites.

    Raises:
        ValueError: An entry names an operator that its site does not have, or keeps other numbers
            of units in different heads.
    """
    for name, entry in entries.items():
        site = sites[name]
        if entry.operator is not None and entry.operator not in site.operators():
            raise ValueError(f'expected an `operator` among {sorted(site.operators())} at site '
                             f'`{name}`, found `{entry.operator}`')
        kept = torch.tensor(entry.kept, dtype=torch.int64,
                            device=next(site.host.parameters()).device)
        site.check(kept)
        if site.gate is not None and site.gate.slices:
            slice_site(site, kept, fold=True)
        site.slice_to(kept, entry.operator)


def slice_site(site: HostSite, kept: Tensor, fold: bool = False,
               optimizer: Optimizer | None = None) -> bool:
    """Slice a site and its gate, which stays.

    Args:
        site (HostSite): Its gate slices.
        kept (Tensor): Units of the dense dimension that stay, (k,), int64, ascending.
        fold (bool): Whether the gate's mask is folded into the weights, as nothing is left to
            decide. Defaults to False.
        optimizer (Optimizer, optional): Its moments follow. Defaults to None.

    Returns:
        bool: Whether a tensor changed.
    """
    gate = site.gate
    sliced, folds = len(kept) < gate.present, fold and not gate.folded
    if sliced:
        places = site.slice_units(kept, optimizer)
        own = [Axis(gate, 'importance'), Axis(gate, 'kept')]
        slice_axes([*own, *site.attached], places, optimizer)
    if folds:
        scale_axes([*site.axes(), *site.attached], gate.scale(), optimizer)
        gate.fold()
    return sliced or folds


def apply_decisions(sites: Sites, optimizer: Optimizer | None = None) -> bool:
    """Slice units that no option can keep, and fold the masks of decided gates.

    Args:
        sites (Mapping[str, HostSite]): By name; gates that do not slice are left alone.
        optimizer (Optimizer, optional): Its moments follow. Defaults to None.

    Returns:
        bool: Whether a tensor changed.
    """
    changed = False
    for site in sites_that_slice(sites).values():
        gate, keepable = site.gate, site.gate.keepable()
        kept = gate.kept if keepable is None else gate.kept[keepable]
        changed |= slice_site(site, kept, gate.decided, optimizer)
    return changed


def copy_decisions(sites: Sites, others: Sites) -> None:
    """Slice and fold sites as the sites of another copy of the supernet are, ``others``."""
    for name, other in sites_that_slice(others).items():
        sites[name].gate.alive.copy_(other.gate.alive)
        slice_site(sites[name], other.gate.kept, bool(other.gate.folded))


def slice_as_state(sites: Sites, state: Mapping[str, Tensor], prefix: str = '',
                   optimizer: Optimizer | None = None) -> bool:
    """Slice sites to the sizes of a state that is to be loaded afterwards.

    Args:
        sites (Mapping[str, HostSite]): By name; gates that do not slice are left alone.
        state (Mapping[str, Tensor]): Of the same supernet, sliced while it trained. Units that
            slicing cannot reach are left to the strict loading, which refuses them.
        prefix (str): Beginning of the backbone's keys in the state. Defaults to ''.
        optimizer (Optimizer, optional): Its moments follow. Defaults to None.

    Returns:
        bool: Whether a tensor changed.
    """
    changed = False
    for name, site in sites_that_slice(sites).items():
        gate, kept = site.gate, state.get(f'{prefix}{name}.gate.kept')
        if kept is None:
            continue
        kept = kept.to(gate.kept.device)
        counts = site.group_counts(kept)
        even = len(counts) > 0 and bool((counts == counts[0]).all())
        if even and torch.isin(kept, gate.kept).all():
            changed |= slice_site(site, kept, optimizer=optimizer)
        # the mask is in the weights that follow, so here only the gate is told
        if state[f'{prefix}{name}.gate.folded'] and not gate.folded:
            gate.fold()
            changed = True
    return changed

"""Subnets of one keep ratio everywhere, whose units are drawn at random."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmkcr.closed_form.profiles import FILLED, fit_sizes, uniform_sizes
from mmkcr.core import MacsModel, Structure
from mmkcr.core.budget import allowed_sizes
from mmkcr.core.sites import Site
from mmkcr.models.counting import count_macs, note_backbone_macs
from mmkcr.models.tasks import part_to_count, search_space, task_forward


def random_subnet(model: nn.Module, target: str | int | float,
                  input_shape: Sequence[int] = (3, 224, 224), part: str | None = None,
                  divisor: int = 8, seed: int = 0) -> tuple[nn.Module, Structure]:
    """Slice a dense model or a supernet at one common keep ratio, with random, scattered units.

    Sites whose gates have options take sizes among these.

    Args:
        model (nn.Module): Its backbone has a search space, dense or a supernet; it is sliced in
            place.
        target (str | int | float): Maximum MACs, see :func:`~mmkcr.core.parse_target`.
        input_shape (Sequence[int]): (C, H, W). Defaults to (3, 224, 224).
        part (str, optional): See :func:`~mmkcr.models.tasks.part_to_count`.
        divisor (int): Sizes of sites with at least four times as many units are multiples of it, or
            full. Defaults to 8.
        seed (int): Seed of the choice. Defaults to 0.

    Raises:
        ValueError: The target is out of reach; the message gives the range.
    """
    space, counted = search_space(model), part_to_count(model, part)
    space.put_masks()  # they stay in the subnet, and their MACs count
    macs = MacsModel(counted, space.host, space.sites, task_forward(counted, input_shape))
    offered = {name: _sizes(site, divisor) for name, site in space.sites.items()}
    wanted = macs.parse_target(target)
    macs.check_target(wanted, {name: sizes[0] for name, sizes in offered.items()})
    generator = torch.Generator().manual_seed(seed)
    sizes = uniform_sizes(offered, macs, wanted)
    if macs(sizes) < FILLED * wanted:  # the next common ratio is above the target
        # a convex loss for all sites: it fills the budget and keeps the ratios close
        even = {name: (1 - torch.linspace(0., 1., site.total + 1))**2
                for name, site in space.sites.items()}
        sizes = fit_sizes(sizes, offered, even, macs, wanted)
    structure = space.structure_for({name: random_units(space.sites[name], size, generator)
                                     for name, size in sizes.items()})
    space.slice_to(structure)
    structure.macs = dict(dense=macs.dense, subnet=count_macs(counted, input_shape),
                          input_shape=list(input_shape))
    note_backbone_macs(structure, model, part)
    return model, structure


def _sizes(site: Site, divisor: int) -> list[int]:
    """Sizes of a random subnet's site: of every head equally many units."""
    if site.gate is not None and (options := site.gate.options()) is not None:
        counts = [site.group_counts(site.gate.selection(place)) for place in range(len(options))]
        return sorted({int(units.sum()) for units in counts if site.rows in (1, len(units))})
    step = math.lcm(divisor if site.total >= 4 * divisor else 1, site.rows)
    return allowed_sizes(site.total, 1, step)


def random_units(site: Site, count: int, generator: torch.Generator) -> Tensor:
    """Random units of a site, int64, ascending; equally many of every head."""
    width = site.total // site.rows
    return torch.cat([head * width + torch.randperm(width, generator=generator)[
        :count // site.rows].sort().values for head in range(site.rows)])

"""Other units than those of the closed form, as many in every layer: controls of its choice."""

import copy
import zlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmkcr.closed_form.options import open_search_space
from mmkcr.closed_form.readers import readers
from mmkcr.core import Structure
from mmkcr.models.sites.base import HostSite

#: Takes a site and a generator; returns an order of the site's units.
Choose = Callable[[HostSite, torch.Generator], Tensor]


def at_random(site: HostSite, generator: torch.Generator) -> Tensor:
    """Units in random order."""
    return _ordered(site, torch.rand(site.total, generator=generator))


def by_weight(site: HostSite, generator: torch.Generator) -> Tensor:
    """Units by the norm of the weights that read them."""
    weight = readers(site)[0].layer.weight.detach().flatten(1)
    return _by_unit(site, weight.square().sum(0))


def _by_unit(site: HostSite, values: Tensor) -> Tensor:
    reader = readers(site)[0]
    columns = reader.columns(torch.arange(site.total))
    return _ordered(site, values[columns].view(site.total, -1).sum(1))


def _ordered(site: HostSite, scores: Tensor) -> Tensor:
    """Units by their scores, the largest first; the first of every head, then the second ones."""
    places = scores.view(site.rows, -1).argsort(dim=1, descending=True, stable=True)
    return (places + torch.arange(site.rows)[:, None] * places.shape[1]).T.flatten()


def same_sizes(model: nn.Module, like: Structure, choose: Choose) -> Structure:
    """A structure with other units, as many in every layer as a given structure has.

    Args:
        model (nn.Module): Dense; it is not changed.
        like (Structure): Of the same kinds of site.
        choose (Callable): Gives the order of a site's units.
    """
    model = copy.deepcopy(model)
    model.eval()
    space = open_search_space(model, like.backbone['sites'])
    kept = {}
    for name, site in space.sites.items():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        order = choose(site, generator)
        kept[name] = order[:len(like.sites[name].kept)].sort().values
    return space.structure_for(kept)

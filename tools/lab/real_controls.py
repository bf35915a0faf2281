"""Other ways to the MACs of the closed form, for a real network in timm's names."""

import copy
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.closed_form.compression import CompressResult, compress, refit_structure
from mmkcr.closed_form.options import CompressOptions, open_search_space
from mmkcr.closed_form.readers import readers
from mmkcr.core import Structure
from mmkcr.models.sites.base import HostSite
from .saliency import tokens
from .snapvit import snapvit_structure
from .torch_pruning import PRUNED, torch_pruning_structure

#: What each is; all see the same crops.
METHODS: Mapping[str, str] = {
    'closed-form': 'closed form',
    'uniform': 'closed form, uniform widths',
    'random': 'random units, refitted',
    'random-sliced': 'random units, not refitted',
    'largest': 'largest weights, refitted',
    'largest-sliced': 'largest weights, not refitted',
    'torch-pruning': 'Torch-Pruning, weights, not refitted',
    'torch-pruning-refit': 'Torch-Pruning, weights, refitted',
    'corp': 'CORP',
    'grail': 'GRAIL',
    'snapvit': "SnapViT's score, not refitted",
    'snapvit-refit': "SnapViT's score, refitted"}
#: Those whose readers are refitted.
REFITTED = ('closed-form', 'uniform', 'random', 'largest', 'torch-pruning-refit', 'snapvit-refit')
#: Takes a site and a generator; returns an order of the site's units.
Choose = Callable[[HostSite, torch.Generator], Tensor]


def at_random(site: HostSite, generator: torch.Generator) -> Tensor:
    """Units in random order."""
    return _ordered(site, torch.rand(site.total, generator=generator))


def by_weight(site: HostSite, generator: torch.Generator) -> Tensor:
    """Units by the norm of the weights that read them."""
    reader = readers(site)[0]
    squares = reader.layer.weight.detach().flatten(1).square().sum(0)
    columns = reader.columns(torch.arange(site.total))
    return _ordered(site, squares[columns].view(site.total, -1).sum(1))


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


#: Those with as many units in every layer as the closed form has, by their orders.
SAME_SIZES: Mapping[str, Choose] = {'random': at_random, 'random-sliced': at_random,
                                    'largest': by_weight, 'largest-sliced': by_weight}


class _Task(nn.Module):
    """A backbone as the task model that :mod:`.torch_pruning` reads."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, inputs: Tensor, samples: Any = None, mode: str = 'tensor') -> Tensor:
        """Features of all tokens."""
        return tokens(self.backbone, inputs)


def control(method: str, model: nn.Module, images: Tensor, target: str, profiles: dict[str, Any],
            like: Structure | None = None, rho: float | None = None) -> CompressResult:
    """A network of about the same MACs.

    Args:
        method (str): Of :data:`METHODS`, but CORP and GRAIL.
        model (nn.Module): Dense; it is not changed.
        images (Tensor): Calibration images.
        target (str): Maximum MACs.
        profiles (dict): Of an earlier call, or gets those of this one.
        like (Structure, optional): Of the closed form: random units and units of largest weights
            are as many in every layer. Defaults to None: of no use to the other methods.
        rho (float, optional): Ridge of refits. Defaults to None: the package's default.
    """
    options = dict(input_shape=tuple(images.shape[1:]),
                   refit='least-squares' if method in REFITTED else 'none',
                   **({} if rho is None else dict(rho=rho)))
    if method in ('closed-form', 'uniform'):
        result = compress(model, images, target, profiles=profiles or None, forward=tokens,
                          uniform=method == 'uniform', **options)
        profiles.update(result.profiles)
        return result
    if method in SAME_SIZES:
        structure = same_sizes(model, like, SAME_SIZES[method])
    elif method.startswith('snapvit'):
        structure = snapvit_structure(model, images, target)
    else:
        structure = torch_pruning_structure(_Task(model), PRUNED, target, dict(inputs=images[:1]))
    return refit_structure(model, structure, images, CompressOptions(**options), tokens)

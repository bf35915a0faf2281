"""Units as Torch-Pruning chooses them, for comparison (an optional package; timm's ViTs alone).

Its graph of dependencies knows timm's attention and fails on that of mmpretrain. What it removes is
written as a structure, and sliced by us: the weights that stay are the same.
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.apis.compress_files import task_outputs
from mmkcr.closed_form.compression import macs_model
from mmkcr.closed_form.options import open_search_space
from mmkcr.core import MacsModel, Structure, parse_target
from mmkcr.models.search_space import SearchSpace

#: Kinds of site that it can remove units of.
PRUNED = ('mlp_hidden', 'heads')
#: Halvings of the interval that a share is in.
STEPS = 12


def torch_pruning_structure(model: nn.Module, sites: Sequence[str],
                            target: str | int | float, batch: Any) -> Structure:
    """The largest structure within a budget that Torch-Pruning gives by norms of weights.

    Hidden units and whole heads are removed by one ratio in every layer, as in its example for
    ViTs: shared out globally, whole blocks lose all their heads.

    Args:
        model (nn.Module): A classifier with a ViT of timm; it is left as it is.
        sites (Sequence[str]): Of :data:`PRUNED`.
        target (str | int | float): Maximum MACs, see :func:`~mmkcr.core.parse_target`.
        batch (dict): Of the data preprocessor; it traces the network.

    Raises:
        ValueError: Torch-Pruning is not installed, the model is another one, or no ratio meets the
            target.
    """
    try:
        import torch_pruning
    except ImportError as error:
        raise ValueError('expected the package `torch-pruning`, found none: `pip install '
                         'torch-pruning`') from error
    model = copy.deepcopy(model).eval()
    if not _attentions(model):
        raise ValueError('expected a ViT of timm for Torch-Pruning, found a '
                         f'`{type(model.backbone).__name__}`')
    space = open_search_space(counted := copy.deepcopy(model), sites)
    macs = macs_model(counted, space, batch['inputs'].shape[1:], None)

    def make(share: float) -> Structure:
        removed = _removed(torch_pruning, model, batch, share)
        return space.structure_for(_kept(space, removed))

    return largest_structure(make, macs, parse_target(target, macs.dense), 'Torch-Pruning')


def largest_structure(make: Callable[[float], Structure], macs: MacsModel, limit: int,
                      name: str) -> Structure:
    """The structure of the least share that goes within a budget, by halving the interval.

    Args:
        make (Callable): Takes a share from 0 to 1, gives the structure without it.
        macs (MacsModel): Counts.
        limit (int): Most MACs.
        name (str): Of the method.

    Raises:
        ValueError: No share meets the limit.
    """
    low, high, best = 0., 1., None
    for _ in range(STEPS):
        share = (low + high) / 2
        structure = make(share)
        if macs(structure.sizes()) <= limit:
            high, best = share, structure
        else:
            low = share
    if best is None:
        raise ValueError(f'expected a target that {name} reaches, found {limit} MACs')
    return best


def _attentions(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules()
            if isinstance(getattr(module, 'qkv', None), nn.Linear) and
            hasattr(module, 'fused_attn')]


def _removed(library: Any, model: nn.Module, example: Any, ratio: float
             ) -> dict[tuple[str, int], set[int]]:
    """Entries that are removed, by layer's name and dimension of its weight."""
    model = copy.deepcopy(model)
    attentions = _attentions(model)
    for attention in attentions:
        attention.fused_attn = False  # the graph does not see through the fused one
    # what gives the residual stream keeps its outputs
    kept = [module for name, module in model.named_modules()
            if isinstance(module, (nn.Linear, nn.Conv2d)) and
            not name.endswith(('.qkv', '.fc1'))]
    # where it would remove the last head it removes none
    heads = min(ratio, 0.99 * (1 - 1 / min(one.num_heads for one in attentions)))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of the embedding of positions, which stays
        pruner = library.pruner.BasePruner(
            model, example, library.importance.GroupMagnitudeImportance(), pruning_ratio=ratio,
            ignored_layers=kept, num_heads={one.qkv: one.num_heads for one in attentions},
            prune_num_heads=True, prune_head_dims=False, head_pruning_ratio=heads,
            forward_fn=task_outputs, output_transform=torch.sum)
        pruner.step()
    found: dict[tuple[str, int], set[int]] = {}
    for name, is_output, indices in pruner.pruning_history():
        found.setdefault((name, 0 if is_output else 1), set()).update(indices)
    return found


def _kept(space: SearchSpace, removed: dict[tuple[str, int], set[int]]) -> dict[str, Tensor]:
    """Units of every site that stay."""
    names = {module: f'backbone.{name}' for name, module in space.host.named_modules()}
    kept = {}
    for name, site in space.sites.items():
        lost = {index // axis.inner for axis in site.axes() if axis.name == 'weight'
                for index in removed.get((names[axis.module], axis.dim), ())
                if not axis.repeats > 1}
        kept[name] = torch.tensor([unit for unit in range(site.total) if unit not in lost])
    return kept

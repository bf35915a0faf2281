"""Which heads to replace, from scores to a structure file and weights (section 3.3)."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_world_size
from torch import Tensor, nn

from mmkcr.apis.slim_files import write_subnet
from mmkcr.core import Structure, count_params
from mmkcr.evaluation.features import share_of_rank
from mmkcr.models.counting import count_macs, note_backbone_macs
from mmkcr.models.head_choice import find_head_sites
from mmkcr.models.layers.head_operators import FOLDED
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.tasks import find_task, search_space
from .head_scores import head_scores
from .kernel_analysis import split_loader


def replaceable_heads(model: nn.Module) -> SearchSpace:
    """The search space of a dense model whose heads can be replaced.

    Raises:
        ValueError: Another backbone, or one that is a supernet or a subnet.
    """
    space = search_space(model)
    if not find_head_sites(space.sites):
        raise ValueError('expected a backbone with replaceable heads (`DWConvVisionTransformer`), '
                         f'found `{space.type_name}`')
    if space.state_name() != 'dense':
        raise ValueError(f'expected a dense `{space.type_name}`, found one with gates or with a '
                         'structure')
    return space


def score_heads(model: nn.Module, config: Any, images: int | None = 1000, seed: int = 0,
                distributed: bool = False, **kwargs: Any) -> dict[str, Tensor]:
    """Scores of the heads over training images, with test transforms.

    Args:
        model (nn.Module): Dense task model.
        config (Config): With its data.
        images (int, optional): Drawn at random without replacement; None for all. Defaults to
            1000, as the paper.
        seed (int): Of the draw. Defaults to 0.
        distributed (bool): Every rank takes its share. Defaults to False.
        **kwargs: See :func:`~lab.head_scores.head_scores`.

    Raises:
        ValueError: As :func:`replaceable_heads`, fewer than two images, or fewer than
            processes.
    """
    space, loader = replaceable_heads(model), split_loader(config, 'train')
    total = len(loader.dataset)
    if images is not None and images < 2:
        raise ValueError(f'expected at least two images to score, found {images}')
    count = total if images is None else min(images, total)
    world = get_world_size() if distributed else 1
    if count < world:
        raise ValueError(f'expected at least one image for each of {world} processes, found '
                         f'{count}')
    drawn = torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:count].tolist()
    batches = share_of_rank(loader.dataset, sorted(drawn), loader, distributed)
    return head_scores(model, find_head_sites(space.sites), batches, distributed=distributed,
                       **kwargs)


def replace_heads(model: nn.Module, structure: Structure,
                  input_shape: Sequence[int] = (3, 224, 224)) -> Structure:
    """Replace the heads of a dense task model in place, with its weights.

    Args:
        model (nn.Module): Changed.
        structure (Structure): Which heads, and by what.
        input_shape (Sequence[int]): (C, H, W) that MACs are counted for. Defaults to
            (3, 224, 224).

    Returns:
        Structure: With MACs and parameters before and after.
    """
    before = dict(macs=count_macs(model, input_shape), params=count_params(model))
    replaceable_heads(model).slice_to(structure)
    structure.macs = dict(dense=before['macs'], subnet=count_macs(model, input_shape),
                          input_shape=list(input_shape))
    note_backbone_macs(structure, model, 'model')
    structure.params = dict(dense=before['params'], subnet=count_params(model))
    return structure


def unfolded(structure: Structure) -> Structure:
    """A learned selection for a new fine-tuning: with operators as they are trained, not folded."""
    sites = {name: dataclasses.replace(entry, operator=entry.operator and
                                       entry.operator.removesuffix(FOLDED))
             for name, entry in structure.sites.items()}
    return dataclasses.replace(structure, sites=sites)


def write_replaced(model: nn.Module, structure: Structure, folder: str | Path,
                   shape: Sequence[int], content: Mapping[str, Any] | None = None) -> Structure:
    """Replace, and write ``structure.json`` and ``subnet.pth`` as slimming does."""
    task = find_task(model)
    structure = replace_heads(task, structure, shape)
    write_subnet(task, structure, (content or {}).get('meta') or {}, Path(folder))
    return structure

"""Sizes of the configs in the metafiles, before anything has been trained.

A subnet's structure comes from a search. Without one, a target fixes its size
up to how the channels are spread over the blocks: here each block keeps the
same share, *one keep ratio everywhere*. The rows of the metafiles and the files of
configs/structures both have their sizes from :func:`uniform_subnet`.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from mmengine.config import Config, ConfigDict
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mmkcr.closed_form.profiles import FILLED, fit_sizes, uniform_sizes
from mmkcr.core import MacsModel, MacsReport, Structure
from mmkcr.core.budget import allowed_sizes
from mmkcr.core.sites import Site
from mmkcr.engine.build import build_model, default_shape
from mmkcr.models.counting import count_macs, macs_report, note_backbone_macs
from mmkcr.models.searchable import SearchableBackbone
from mmkcr.models.tasks import online_params, part_to_count, search_space, task_forward
from mmkcr.registry import MODELS

Target = str | int | float
_ATTENTION = ('bmm', 'scaled_dot_product', 'baddbmm')


class ModelSize(NamedTuple):
    """Size of one model.

    Args:
        macs (int): Multiply-accumulates for one image, attention products
            included.
        params (int): Parameters, without those of a momentum copy.
        attention (int): The attention products among the ``macs``.
        keep (float): Share of the channels kept, over all sites.
    """

    macs: int
    params: int
    attention: int
    keep: float


class uninitialized(TorchFunctionMode):
    """Context in which the costly functions of ``torch.nn.init`` do nothing.

    These are ``uniform_``, ``normal_``, ``kaiming_uniform_`` and the like, which
    PyTorch's layers call when they are built. A model built inside has sizes
    and no meaningful weights, and takes a fraction of the time.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (),
                           kwargs: dict | None = None) -> Any:
        """Skip what initialises, run the rest."""
        kwargs = kwargs or {}
        if getattr(func, '__module__', None) == 'torch.nn.init':
            return kwargs['tensor'] if 'tensor' in kwargs else args[0]
        return func(*args, **kwargs)


def task_config(config: Config) -> ConfigDict:
    """The bare task model of a search, retrain or deploy config, in the dense state.

    Args:
        config (Config): With a ``model``.
    """
    model = copy.deepcopy(config.model.get('architecture', config.model))
    for state in ('gates', 'structure'):
        model.backbone.pop(state, None)
    return model


def attention_macs(report: MacsReport) -> int:
    """MACs of the products of queries, keys and values, which some papers leave out."""
    return sum(macs for operator, macs in report.operators.items()
               if any(name in operator for name in _ATTENTION))


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


def uniform_subnet(config: Config, target: Target | None = None, replaced: int | None = None,
                   seed: int = 0, divisor: int = 8) -> nn.Module:
    """A config's task model, slimmed with one keep ratio everywhere, units drawn at random.

    Gates with options take sizes among these. Nothing is left of the weights.

    Args:
        config (Config): With a task model whose backbone is searchable.
        target (str | int | float, optional): Most MACs, of a detector's or a segmentor's backbone.
            Defaults to None: it stays dense.
        replaced (int, optional): Blocks whose attention an operator replaces, the first ones.
            Defaults to None: none.
        seed (int): Of the units. Defaults to 0.
        divisor (int): Sizes are multiples of it, or full. Defaults to 8.

    Returns:
        nn.Module: The model; its search space has the structure.

    Raises:
        ValueError: The target is out of reach.
    """
    task, scope = task_config(config), config.get('default_scope', 'mmpretrain')
    if target is not None:
        cls = MODELS.get(task.backbone.type)
        task.backbone.gates = dict(getattr(cls, 'unlearned_gates',
                                           SearchableBackbone.unlearned_gates))
    with uninitialized():
        model = build_model(Config(dict(model=task, default_scope=scope)))
    if target is not None:
        part = None if scope == 'mmpretrain' else 'backbone'
        random_subnet(model, target, default_shape(config, model), part, divisor, seed)
    if replaced is not None:
        replace_blocks(model, replaced)
    return model


def replace_blocks(model: nn.Module, count: int) -> None:
    """Replace the attention of the first blocks, in place; which ones does not change the size.

    Args:
        model (nn.Module): Dense task model.
        count (int): Blocks.
    """
    space = search_space(model)
    blocks = [name for name, site in space.sites.items() if site.kind == 'head_operator']
    space.slice_to(space.structure_for({site: torch.arange(0) for site in blocks[:count]}))


def model_size(config: Config, target: Target | None = None,
               replaced: int | None = None, divisor: int = 8) -> ModelSize:
    """Size of a config's task model; the MACs of a dense task are those of the backbone.

    Args:
        config (Config): With a task model; its backbone is searchable if there is a ``target``
            or ``replaced``.
        target (str | int | float, optional): MACs of its subnet with one keep
            ratio everywhere. Defaults to None: the dense model.
        replaced (int, optional): Blocks whose attention an operator replaces.
            Defaults to None: none.
        divisor (int): Sizes are multiples of it, or full. Defaults to 8.
    """
    model = uniform_subnet(config, target, replaced, divisor=divisor)
    part = None if config.get('default_scope', 'mmpretrain') == 'mmpretrain' else 'backbone'
    report = macs_report(part_to_count(model, part), default_shape(config, model))
    # a dense model may be the host's own, without a search space
    structure = None if target is replaced is None else search_space(model).structure
    kept = [(len(site.kept), site.total) for site in structure.sites.values()] if structure \
        else [(1, 1)]
    keep = sum(size for size, _ in kept) / sum(total for _, total in kept)
    return ModelSize(report.total, online_params(model), attention_macs(report), keep)

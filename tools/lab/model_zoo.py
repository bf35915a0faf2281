"""Sizes of the configs in the metafiles, before anything has been trained.

A subnet's structure comes from a search. Without one, a target fixes its size
up to how the channels are spread over the blocks: here each block keeps the
same share, *one keep ratio everywhere*.
"""

import copy
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple, Union

import torch
from mmengine.config import Config, ConfigDict
from torch import nn
from torch.overrides import TorchFunctionMode

from mmkcr.apis.build import build_model, default_shape
from mmkcr.apis.slimming import slim
from mmkcr.core import MacsReport
from mmkcr.models.counting import macs_report
from mmkcr.models.searchable import SearchableBackbone
from mmkcr.models.utils import counted_part, online_params, search_space
from mmkcr.registry import MODELS

Target = Union[str, int, float]
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
                           kwargs: Optional[Dict] = None) -> Any:
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


def uniform_subnet(model: Mapping[str, Any], target: Target,
                   input_shape: Tuple[int, int, int], scope: str = 'mmpretrain',
                   part: Optional[str] = None) -> nn.Module:
    """A task model slimmed to a target with one keep ratio everywhere.

    Gates with options take those that lie nearest to no preference at all.

    Args:
        model (dict): Config of the dense task model.
        target (str | int | float): As in :func:`~mmkcr.apis.slim`.
        input_shape (tuple[int]): (C, H, W).
        scope (str): The library of the task model. Defaults to ``'mmpretrain'``.
        part (str, optional): See :func:`~mmkcr.apis.slim`.

    Returns:
        nn.Module: The subnet, without meaningful weights.

    Raises:
        ValueError: The target is out of reach.
    """
    model = copy.deepcopy(ConfigDict(model))
    cls = MODELS.get(model.backbone.type)
    model.backbone.gates = dict(getattr(cls, 'unlearned_gates', SearchableBackbone.unlearned_gates))
    supernet = _build(model, scope)
    for gate in search_space(supernet).gates().values():
        if gate.options() is None:
            order = (torch.arange(gate.total) + 0.5) / gate.total
            gate.alpha.data.copy_(1 - order)  # the same quantiles at every site
    return slim(supernet, target, input_shape=input_shape, part=part, ordinary=False)[0]


def replace_blocks(model: nn.Module, count: int) -> None:
    """Replace the attention of the first blocks, in place; which ones does not change the size.

    Args:
        model (nn.Module): Dense task model.
        count (int): Blocks.
    """
    space = search_space(model)
    blocks = [name for name, site in space.sites.items() if site.kind == 'head_operator']
    space.slice_to(space.structure_for({site: torch.arange(0) for site in blocks[:count]}))


def model_size(config: Config, target: Optional[Target] = None,
               replaced: Optional[int] = None) -> ModelSize:
    """Size of a config's task model; the MACs of a dense task are those of the backbone.

    Args:
        config (Config): With a task model; its backbone is searchable if there is a ``target``
            or ``replaced``.
        target (str | int | float, optional): MACs of its subnet with one keep
            ratio everywhere. Defaults to None: the dense model.
        replaced (int, optional): Blocks whose attention an operator replaces.
            Defaults to None: none.
    """
    task, scope = task_config(config), config.get('default_scope', 'mmpretrain')
    part = None if scope == 'mmpretrain' else 'backbone'
    model = _build(task, scope)
    shape = default_shape(config, model)
    if target is not None:
        model = uniform_subnet(task, target, shape, scope, part)
    if replaced is not None:
        replace_blocks(model, replaced)
    report = macs_report(counted_part(model, part), shape)
    # a dense model may be the host's own, without a search space
    structure = None if target is replaced is None else search_space(model).structure
    kept = [(len(site.kept), site.total) for site in structure.sites.values()] if structure \
        else [(1, 1)]
    keep = sum(size for size, _ in kept) / sum(total for _, total in kept)
    return ModelSize(report.total, online_params(model), attention_macs(report), keep)


def _build(model: Mapping[str, Any], scope: str) -> nn.Module:
    with uninitialized():
        return build_model(Config(dict(model=model, default_scope=scope)))

"""Many budgets of one network from one calibration (SPEC 9): refitted for a few, mixed between.

A block is refitted towards the dense network's outputs, so it also fits beside blocks of another
budget. Between two budgets there is therefore one network for every block that changes from the
one to the next. Only whole blocks are exchanged; no weights change. A residual stream is part of
every block, so there are no networks between two budgets with streams of different widths.
"""

import copy
import dataclasses
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from mmkcr.core import MacsModel, Order, block_of, parse_target
from mmkcr.core.order import Step, steps_between
from mmkcr.models.adapters.views import shared_parameters
from mmkcr.models.backbone_loading import OUTSIDE, RUNGS, load_outside
from mmkcr.models.calibration import Forward
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites.base import HostSite, KindConfig
from mmkcr.models.sites.embedding import Embedding
from .compress_progress import CompressProgress
from .compression import CompressResult, compress, macs_model, searched
from .share_out import check_reach
from .site_profiles import CompressOptions


@dataclasses.dataclass
class BudgetsResult:
    """Result of :func:`compress_budgets`.

    Args:
        order (Order): All networks; its ``backbone`` builds them.
        state (dict[str, Tensor]): Weights of the given model and of all its budgets.
        results (list[CompressResult]): One per budget, the largest first.
        macs (MacsModel): MACs as a function of the sites' sizes.
    """

    order: Order
    state: Dict[str, Tensor]
    results: List[CompressResult]
    macs: MacsModel

    def network(self, model: nn.Module, step: Step) -> nn.Module:
        """Build one of the networks.

        Args:
            model (nn.Module): The dense model that was given; it is not changed.
            step (Step): The rung of every block, from the order or chosen freely.
        """
        network = copy.deepcopy(model)
        space = searched(network, self.order.backbone['sites'])
        space.rungs = self.order.origins(step)
        space.slice_to(self.order.structure(step))
        parent, name = _place(network, space.host)
        if name:
            load_outside(space, network.get_submodule(parent), name)
        network.load_state_dict(self.state)
        return network


def compress_budgets(model: nn.Module,
                     images: Union[Tensor, Sequence[Any]],
                     targets: Sequence[Union[str, int, float]],
                     sites: Optional[Sequence[KindConfig]] = None,
                     input_shape: Sequence[int] = (3, 224, 224),
                     part: Optional[str] = None,
                     forward: Optional[Forward] = None,
                     held_out: Union[Tensor, Sequence[Any], None] = None,
                     done: Optional[Sequence[CompressProgress]] = None,
                     **options: Any) -> BudgetsResult:
    """Make a network smaller for many budgets at once.

    At each of the ``targets`` the network is that of :func:`compress`. Between two targets,
    networks take blocks from both.

    Args:
        model (nn.Module): As in :func:`compress`, like all arguments that are not listed here.
        images (Tensor | Sequence): As there.
        targets (Sequence[str | int | float]): Maximum MACs of every budget.
        done (Sequence[CompressProgress], optional): One per target. Defaults to None.

    Raises:
        ValueError: As in :func:`compress`; no targets, or two equal ones; blocks that share
            weights; or a residual stream whose readers are not beside the backbone.
    """
    dense = copy.deepcopy(model)
    space = searched(dense, sites)
    macs = macs_model(dense, space, input_shape, part)
    limits = [parse_target(target, macs.dense) for target in targets]
    if not limits or len(set(limits)) < len(limits):
        raise ValueError(f'expected budgets that differ, at least one, found {list(targets)}')
    check_reach(space, macs, min(limits), CompressOptions(**options))
    _check_unshared(space)
    results: List[CompressResult] = []
    places = sorted(range(len(limits)), key=lambda place: -limits[place])
    for place in places:
        # the dense network's profiles hold for every budget
        profiles = results[0].profiles if results else None
        results.append(compress(model, images, limits[place], sites, input_shape, part, forward,
                                held_out, profiles, done[place] if done else None, **options))
    parent, name = _place(dense, space.host)
    prefix = f'{parent}.{name}.'.lstrip('.') if name else ''
    # rung 0; copies, as the caller may go on to train the model
    before = {name: value.clone() if isinstance(value, Tensor) else value
              for name, value in model.state_dict().items()}
    changed = [_changed(before, result.model.state_dict(), prefix, parent) for result in results]
    blocks = _blocks(space.sites, {key for keys in changed for key in keys})
    # rung 1 is the largest budget
    state = {**before, **{f'{prefix}{RUNGS}{rung}.{key}': value
                          for rung, own in enumerate(changed, 1) for key, value in own.items()}}
    order = _order(results, blocks, [limits[place] for place in places], macs)
    return BudgetsResult(order, state, results, macs)


def _check_unshared(space: SearchSpace) -> None:
    """Refuse blocks that share weights: each is exchanged for itself between two budgets."""
    shared = shared_parameters(space.host)
    twice = [name for name, site in space.sites.items()
             if shared.intersection(id(axis.value) for axis in site.axes())]
    if twice:
        raise ValueError('expected blocks that share no weights for networks of many budgets, '
                         f'found that `{twice[0]}` is used at several places')


def _place(model: nn.Module, host: nn.Module) -> Tuple[str, str]:
    """Path of the module that a host is part of, and the host's name in it; '' for the model."""
    path = next(path for path, module in model.named_modules() if module is host)
    parent, _, name = path.rpartition('.')
    return parent, name


def _changed(dense: Mapping[str, Tensor], slim: Mapping[str, Tensor], prefix: str,
             parent: str) -> Dict[str, Tensor]:
    """Tensors of a slim network that differ from the dense one's, by their key in the backbone.

    Layers behind the backbone have :data:`OUTSIDE` and their key in the module that contains it.

    Args:
        dense (Mapping[str, Tensor]): State of the dense model.
        slim (Mapping[str, Tensor]): State of the slim model.
        prefix (str): Prefix of the backbone's keys.
        parent (str): Path of the module that contains the backbone.

    Raises:
        ValueError: A tensor belongs to neither.
    """
    found, beside = {}, f'{parent}.' if parent else ''
    for key, value in slim.items():
        if not isinstance(value, Tensor) or key in dense and value.shape == dense[key].shape and \
                torch.equal(value, dense[key]):
            continue
        if not key.startswith((prefix, beside)):
            raise ValueError('expected layers beside the backbone that read its residual width to '
                             f'compress for many budgets, found `{key.rpartition(".")[0]}`')
        found[key[len(prefix):] if key.startswith(prefix) else
              f'{OUTSIDE}{key[len(beside):]}'] = value
    return found


def _blocks(sites: Mapping[str, HostSite], changed: Collection[str]) -> Dict[str, List[str]]:
    """Sites by the block whose weights they change; one block for all if these cannot be separated.

    A residual stream changes all blocks and whatever lies between them. The latter is block ''.
    """
    streams = [name for name, site in sites.items() if isinstance(site, Embedding)]
    blocks: Dict[str, List[str]] = {}
    for name in sites:
        if name not in streams:
            blocks.setdefault(block_of(name.rpartition('.')[0]), []).append(name)
    inside = tuple(f'{block}.' for block in blocks)
    # no block inside another: then they can be exchanged one by one
    apart = not any(a != b and b.startswith(a) for a in inside for b in inside)
    if apart and streams:
        return {'': streams, **blocks}
    # some weights outside the blocks depend on the budget, so only whole networks fit together
    if apart and all(key.startswith(inside) for key in changed):
        return blocks
    return {'': list(sites)}


def _order(results: Sequence[CompressResult], blocks: Mapping[str, List[str]],
           limits: Sequence[int], macs: MacsModel) -> Order:
    first, profiles = results[0].structure, results[0].profiles
    totals = {name: site.total for name, site in first.sites.items()}
    rungs = [totals, *(result.structure.sizes() for result in results)]  # rung 0 is dense
    recorded = {key: first.macs[key] for key in ('dense', 'input_shape', 'part')
                if key in first.macs}
    if 'backbone' in first.macs:
        # MACs outside the backbone, which no site changes
        recorded['rest'] = first.macs['subnet'] - first.macs['backbone']
    operators = {name: site.operator for result in results
                 for name, site in result.structure.sites.items() if site.operator}
    return Order(
        first.backbone, {name: profiles[name].order.order.tolist() for name in totals},
        dict(blocks), rungs,
        steps_between(blocks, rungs, [macs.dense, *limits],
                      {name: profile.losses.tolist() for name, profile in profiles.items()}, macs),
        recorded, first.method, operators=operators)

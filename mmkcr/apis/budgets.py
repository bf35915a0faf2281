"""Many budgets of one network from one calibration (SPEC 9): refitted for a few, mixed between.

A block is refitted towards what the dense network's gives. So it fits beside blocks of another
budget, too, and between two budgets there is a network for every block that goes from the one to
the next. Only blocks are exchanged: no weights are touched.
"""

import copy
import dataclasses
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Union

import torch
from torch import Tensor, nn

from mmkcr.core import MacsModel, Order, parse_target
from mmkcr.core.order import Step, steps_between
from mmkcr.models.backbone_loading import RUNGS
from mmkcr.models.calibration import Forward, block_of
from mmkcr.models.sites.base import KindConfig
from mmkcr.models.utils import search_space
from .compress import CompressResult, compress, macs_model, searched
from .compress_progress import CompressProgress
from .share_out import check_reach
from .site_profiles import CompressOptions


@dataclasses.dataclass
class BudgetsResult:
    """What :func:`compress_budgets` gives.

    Args:
        order (Order): All networks; its ``backbone`` builds them.
        state (dict[str, Tensor]): Weights of the model that was given, and of all its budgets.
        results (list[CompressResult]): By budget, the largest first.
        macs (MacsModel): Of the sites' sizes.
    """

    order: Order
    state: Dict[str, Tensor]
    results: List[CompressResult]
    macs: MacsModel

    def network(self, model: nn.Module, step: Step) -> nn.Module:
        """One of the networks.

        Args:
            model (nn.Module): The dense one that was given; it is left as it is.
            step (Step): From which rung every block is, of the order or any other.
        """
        network = copy.deepcopy(model)
        space = searched(network, self.order.backbone['sites'])
        space.rungs = self.order.origins(step)
        space.slice_to(self.order.structure(step))
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

    At each of the ``targets`` the network is that of :func:`compress`. Between two of them blocks
    are taken from both.

    Args:
        model (nn.Module): As of :func:`compress`, as all that is not said here.
        images (Tensor | Sequence): As there.
        targets (Sequence[str | int | float]): Most MACs of every budget.
        done (Sequence[CompressProgress], optional): One for every target. Defaults to None.

    Raises:
        ValueError: As of :func:`compress`; or no targets, or two alike.
    """
    dense = copy.deepcopy(model)
    space = searched(dense, sites)
    alone = next((name for name, site in space.sites.items()
                  if site.kind in ('head_operator', 'embedding')), None)
    if alone is not None:
        raise ValueError('expected kinds of site that change nothing but their own block to '
                         f'compress for many budgets, found `{alone}`')
    macs = macs_model(dense, space, input_shape, part)
    limits = [parse_target(target, macs.dense) for target in targets]
    if not limits or len(set(limits)) < len(limits):
        raise ValueError(f'expected budgets that differ, at least one, found {list(targets)}')
    check_reach(space, macs, min(limits), CompressOptions(**options))
    results: List[CompressResult] = []
    places = sorted(range(len(limits)), key=lambda place: -limits[place])
    for place in places:
        profiles = results[0].profiles if results else None
        results.append(compress(model, images, limits[place], sites, input_shape, part, forward,
                                held_out, profiles, done[place] if done else None, **options))
    path = next(path for path, module in dense.named_modules() if module is space.host)
    hosts = [search_space(result.model).host.state_dict() for result in results]
    changed = _changed(space.host.state_dict(), hosts)
    blocks = _blocks(list(space.sites), {key for keys in changed for key in keys})
    prefix = f'{path}.' if path else ''
    state = dict(model.state_dict())
    for rung, (keys, own) in enumerate(zip(changed, hosts), 1):
        state.update({f'{prefix}{RUNGS}{rung}.{key}': own[key] for key in keys})
    order = _order(results, blocks, [limits[place] for place in places], macs)
    return BudgetsResult(order, state, results, macs)


def _changed(dense: Mapping[str, Tensor],
             hosts: Sequence[Mapping[str, Tensor]]) -> List[List[str]]:
    """Keys by budget whose tensors are not the dense backbone's."""
    return [[key for key, value in own.items() if isinstance(value, Tensor) and not (
        key in dense and value.shape == dense[key].shape and torch.equal(value, dense[key]))]
        for own in hosts]


def _blocks(sites: Sequence[str], changed: Collection[str]) -> Dict[str, List[str]]:
    """Sites by the block whose weights they change; one for all where a block is not enough."""
    blocks: Dict[str, List[str]] = {}
    for name in sites:
        blocks.setdefault(block_of(name.rpartition('.')[0]), []).append(name)
    inside = tuple(f'{block}.' for block in blocks)
    apart = not any(a != b and b.startswith(a) for a in inside for b in inside)
    if apart and all(key.startswith(inside) for key in changed):
        return blocks
    return {'': list(sites)}


def _order(results: Sequence[CompressResult], blocks: Mapping[str, List[str]],
           limits: Sequence[int], macs: MacsModel) -> Order:
    first, profiles = results[0].structure, results[0].profiles
    totals = {name: site.total for name, site in first.sites.items()}
    rungs = [totals, *(result.structure.sizes() for result in results)]
    recorded = {key: first.macs[key] for key in ('dense', 'input_shape', 'part')
                if key in first.macs}
    if 'backbone' in first.macs:
        recorded['rest'] = first.macs['subnet'] - first.macs['backbone']
    return Order(
        first.backbone, {name: profiles[name].order.order.tolist() for name in totals},
        dict(blocks), rungs,
        steps_between(blocks, rungs, [macs.dense, *limits],
                      {name: profile.losses.tolist() for name, profile in profiles.items()}, macs),
        recorded, first.method)

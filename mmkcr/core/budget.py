"""From scores, or losses, to sizes that meet a budget by construction."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .cost import CostModel, grow_sizes, useful_options

#: Reads a target of MACs relative to a dense network, see :meth:`CostModel.read_target`.
parse_target = CostModel.read_target
#: Most points of the grid of costs of :func:`allocate`.
_POINTS = 20000


def read_share(share: str | float) -> float:
    """A share such as ``'95%'`` or 0.95 as a number; NaN if it is none."""
    text = str(share)
    try:
        return float(text.removesuffix('%')) / (100 if text.endswith('%') else 1)
    except ValueError:
        return math.nan


def allowed_sizes(total: int, min_size: int, divisor: int, group: int = 1) -> list[int]:
    """Sizes that a site may have, ascending: multiples of both steps, and the full size.

    Args:
        total (int): Units of the site.
        min_size (int): Fewest units.
        divisor (int): Step of the sizes, at least 1.
        group (int): Units that are kept or dropped together. Defaults to 1.

    Raises:
        ValueError: A ``divisor`` below 1.
    """
    if divisor < 1:  # of a negative one the least common multiple is positive
        raise ValueError(f'expected a `divisor` of at least 1, found {divisor}')
    step = math.lcm(divisor, group)
    first = min(-(-min_size // step) * step, total)
    return sorted({*range(first, total + 1, step), total})


def solve_budget(scores: Mapping[str, Tensor], macs: CostModel, target: int | None,
                 divisor: int = 1, min_sizes: Mapping[str, int] | None = None,
                 groups: Mapping[str, int] | None = None) -> dict[str, Tensor]:
    """Choose the units of every site under one global threshold.

    The units of a site enter in descending order of score, in groups of ``divisor``. The groups of
    all sites are ranked by their mean score. The longest prefix of this order that costs at most
    ``target`` enters; then single groups of later rank fill the room that is left.

    Args:
        scores (Mapping[str, Tensor]): Score of every unit by site, shape (total,) each.
        macs (CostModel): Where it falls as a size grows (time), the smaller size is not offered.
        target (int, optional): Most MACs. ``None`` keeps the units of positive score, rounded to
            the nearest allowed size.
        divisor (int): Sizes are multiples of it, or full. Defaults to 1.
        min_sizes (Mapping[str, int], optional): Fewest units by site. Defaults to 1 each.
        groups (Mapping[str, int], optional): Consecutive units of one score that enter together.
            Defaults to 1 each.

    Returns:
        dict[str, Tensor]: Kept units of every site, int64, ascending.

    Raises:
        ValueError: ``divisor`` below 1, or a target out of reach.
    """
    min_sizes = min_sizes or {}
    groups = groups or {}
    scores = {site: score.detach().double().cpu() for site, score in scores.items()}
    # a group's units have one score, so a stable order has them side by side
    order = {site: torch.sort(score, descending=True, stable=True)
             for site, score in scores.items()}
    allowed = {site: allowed_sizes(len(score), min_sizes.get(site, 1), divisor, groups.get(site, 1))
               for site, score in scores.items()}
    if target is None:  # no budget: the units of positive score
        counts = {site: int((score > 0).sum()) for site, score in scores.items()}
        # of two equally near sizes, the larger
        sizes = {site: min(options, key=lambda size, site=site: (abs(size - counts[site]), -size))
                 for site, options in allowed.items()}
    else:
        if not macs.rises:  # a size that costs no less than a larger one is useless
            allowed = useful_options(macs, allowed)
        steps = _rank_steps({site: order[site].values for site in allowed}, allowed)
        smallest = {site: sizes[0] for site, sizes in allowed.items()}

        def prefix(count: int) -> dict[str, int]:  # a later size of a site overrides an earlier one
            return {**smallest, **dict(steps[:count])}

        macs.check_range(target, macs(smallest), macs(prefix(len(steps))))
        # the longest prefix within the target: every longer one costs more
        longest = bisect_right(range(1, len(steps) + 1), target,
                               key=lambda count: macs(prefix(count)))
        sizes = grow_sizes(prefix(longest), steps[longest:], macs, target)
    return {site: order[site].indices[:size].sort().values for site, size in sizes.items()}


def _rank_steps(scores: Mapping[str, Tensor],
                allowed: Mapping[str, Sequence[int]]) -> list[tuple[str, int]]:
    """Steps of a site to its next larger allowed size, in the order in which they enter.

    Args:
        scores (Mapping[str, Tensor]): Scores of the units by site, (total,) each, descending.
        allowed (Mapping[str, Sequence[int]]): Sizes by site, ascending.
    """
    entering = []
    for site, sizes in allowed.items():
        means = [float(scores[site][low:high].mean()) for low, high in zip(sizes, sizes[1:])]
        # scores descend, and so do exact means; where scores are equal, a rounded one may not
        falling = accumulate(means, min)
        for rank, (mean, size) in enumerate(zip(falling, sizes[1:])):
            entering.append((-mean, rank, site, size))
    # keys do not rise within a site, and ties go by rank: a site's groups stay in their order
    entering.sort(key=lambda step: step[:2])
    return [(site, size) for *_, site, size in entering]


class Curve(NamedTuple):
    """Loss and cost of a site at each of its possible sizes."""

    sizes: Sequence[int]  # ascending
    losses: Sequence[float]  # not negative
    costs: Sequence[int]  # such as MACs, ascending


def allocate(curves: Mapping[str, Curve], budget: int) -> dict[str, int]:
    """Sizes by site with the least sum of losses whose costs sum to at most a budget.

    This is a multiple-choice knapsack, solved by dynamic programming over the cost above the cost
    of the smallest network. Costs are rounded up to a grid, so the budget always holds. The grid is
    the greatest common divisor of all cost steps, and the answer exact, if that gives at most
    20,000 points; else the budget counts as smaller by at most one grid point per site. One below
    the cost of the smallest sizes is refused.
    """
    lowest = sum(curve.costs[0] for curve in curves.values())
    highest = sum(curve.costs[-1] for curve in curves.values())
    if budget < lowest:
        raise ValueError(f'expected a budget of at least {lowest}, found {budget}')
    room = min(budget, highest) - lowest
    steps = [int(cost - curve.costs[0]) for curve in curves.values() for cost in curve.costs]
    grid = max(int(np.gcd.reduce(steps)) or 1, -(-room // _POINTS))
    points = room // grid
    # best[p]: least loss of the sites so far with at most p grid points above their smallest sizes
    best = np.zeros(points + 1)
    chosen: list[tuple[str, np.ndarray]] = []
    for name, curve in curves.items():
        grown = np.full(points + 1, np.inf)
        picks = np.zeros(points + 1, np.int64)
        for index, (loss, cost) in enumerate(zip(curve.losses, curve.costs)):
            shift = -(-int(cost - curve.costs[0]) // grid)
            if shift > points:  # costs ascend: no larger size fits either
                break
            candidate = best[:points + 1 - shift] + loss
            better = candidate < grown[shift:]
            grown[shift:][better] = candidate[better]
            picks[shift:][better] = index
        best = grown
        chosen.append((name, picks))
    sizes, place = {}, points  # traced back from the whole room, last site first
    for name, picks in reversed(chosen):
        index, curve = int(picks[place]), curves[name]
        sizes[name] = int(curve.sizes[index])
        place -= -(-int(curve.costs[index] - curve.costs[0]) // grid)
    return {name: sizes[name] for name in curves}

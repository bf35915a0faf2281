"""From scores to a selection that meets a budget by construction."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate

import torch
from torch import Tensor

from .cost import CostModel, check_range, cost_kind, grown_sizes, useful_options

#: Reads a target of MACs relative to a dense network, see :meth:`CostModel.read_target`.
parse_target = CostModel.read_target


def allowed_sizes(total: int, min_size: int, divisor: int) -> list[int]:
    """Sizes that a site may have: multiples of the divisor from ``min_size`` on, and the full.

    Raises:
        ValueError: A divisor below 1.
    """
    if divisor < 1:
        raise ValueError(f'expected a `divisor` of at least 1, found {divisor}')
    first = min(-(-min_size // divisor) * divisor, total)
    return sorted({*range(first, total + 1, divisor), total})


def solve_budget(scores: Mapping[str, Tensor],
                 macs: Callable[[Mapping[str, int]], int],
                 target: int | None,
                 divisor: int = 1,
                 min_sizes: Mapping[str, int] | None = None,
                 groups: Mapping[str, int] | None = None) -> dict[str, Tensor]:
    """Choose the units of every site under one global threshold.

    The units of a site enter in descending order of score, in groups of ``divisor``. The groups of
    all sites are ranked by their mean score. The longest prefix of this order that costs at most
    ``target`` enters; then single groups of later rank fill the room that is left.

    Args:
        scores (Mapping[str, Tensor]): Score of every unit by site, shape (total,) each.
        macs (Callable): MACs of the subnet from the sizes of its sites, such as
            :class:`~mmkcr.core.macs.MacsModel`. Where it falls as a size grows, such as time, the
            smaller size is not offered.
        target (int, optional): Most MACs. ``None`` keeps the units of positive
            score, rounded to the nearest allowed size.
        divisor (int): Sizes are multiples of it, or full. Defaults to 1.
        min_sizes (Mapping[str, int], optional): Fewest units by site.
            Defaults to 1 each.
        groups (Mapping[str, int], optional): Consecutive units of one score that enter together,
            by site. Defaults to 1 each.

    Returns:
        dict[str, Tensor]: Kept units of every site, int64, ascending.

    Raises:
        ValueError: ``divisor`` below 1, or a target below the cost of the
            smallest subnet or above that of the dense one.
    """
    if divisor < 1:  # of a negative one the least common multiple is positive
        raise ValueError(f'expected a `divisor` of at least 1, found {divisor}')
    min_sizes = min_sizes or {}
    # a group's units have one score, so a stable order has them side by side
    steps = {site: math.lcm(divisor, (groups or {}).get(site, 1)) for site in scores}
    scores = {site: score.detach().double().cpu() for site, score in scores.items()}
    order = {site: torch.sort(score, descending=True, stable=True)
             for site, score in scores.items()}
    allowed = {site: allowed_sizes(len(score), min_sizes.get(site, 1), steps[site])
               for site, score in scores.items()}
    if target is None:  # no budget: the units of positive score
        counts = {site: int((score > 0).sum()) for site, score in scores.items()}
        # of two equally near sizes, the larger
        sizes = {site: min(options, key=lambda size, site=site: (abs(size - counts[site]), -size))
                 for site, options in allowed.items()}
    else:
        if not cost_kind(macs).rises:  # a size that costs no less than a larger one is useless
            allowed = useful_options(macs, allowed)
        entering = []  # steps between allowed sizes
        for site, sizes in allowed.items():
            means = [float(order[site].values[low:high].mean())
                     for low, high in zip(sizes, sizes[1:])]
            # scores descend, and so do exact means; where scores are equal, a rounded one may not
            entering += [(-key, rank, site, size) for rank, (key, size) in enumerate(
                zip(accumulate(means, min), sizes[1:]))]
        # keys do not rise within a site, and ties go by rank: a site's groups stay in their order
        steps = [(site, size) for *_, site, size in sorted(entering, key=lambda step: step[:2])]
        sizes = _largest_within({site: sizes[0] for site, sizes in allowed.items()}, steps, macs,
                                target)
    return {site: order[site].indices[:size].sort().values for site, size in sizes.items()}


def _largest_within(smallest: dict[str, int], steps: list[tuple[str, int]],
                    macs: Callable[[Mapping[str, int]], int], target: int) -> dict[str, int]:
    def prefix(count: int) -> dict[str, int]:  # a later size of a site overrides an earlier one
        return {**smallest, **dict(steps[:count])}

    check_range(macs, target, macs(smallest), macs(prefix(len(steps))))
    # the longest prefix within the target: every longer one costs more
    longest = bisect_right(range(1, len(steps) + 1), target,
                           key=lambda count: macs(prefix(count)))
    return grown_sizes(prefix(longest), steps[longest:], macs, target)

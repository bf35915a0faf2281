"""Sharing a budget among sites: how many units each keeps, for the least total loss."""

import math
from bisect import bisect_right
from collections.abc import Mapping

from torch import Tensor

from mmkcr.core import CostModel
from mmkcr.core.budget import Curve, allocate, allowed_sizes
from mmkcr.core.cost import useful_options, useful_sizes
from mmkcr.models.sites.base import HostSite
from .options import CompressOptions

#: Least share of a budget that an allocation uses if the sites' sizes allow it.
FILLED = 0.97


def size_options(site: HostSite, settings: CompressOptions) -> list[int]:
    """Sizes that a site may have, ascending; for channels of heads, equally many in every head."""
    total, divisor = site.total // site.rows, settings.divisor
    while total < 4 * divisor and divisor > 8 and divisor % 2 == 0:
        divisor //= 2
    divisor = divisor if total >= 4 * divisor else 1
    least = max(1, round(settings.min_share * total))
    sizes = allowed_sizes(total, least, divisor)
    return [size * site.rows for size in sizes]


def _lost(sizes: Mapping[str, int], losses: Mapping[str, Tensor]) -> float:
    return sum(float(losses[name][size]) for name, size in sizes.items())


def _cheapest_loss(sizes: Mapping[str, int], offered: Mapping[str, list[int]],
                   losses: Mapping[str, Tensor], macs: CostModel, target: int) -> dict[str, int]:
    """Sizes with the least sum of losses; the cost of each is taken at given sizes of the rest."""
    curves, now = {}, int(macs(sizes))
    left = target - now  # the sum of changes that the budget allows
    for name, options in offered.items():
        costs = [int(macs({**sizes, name: size})) for size in options]
        # a smaller size that costs no less is useless (latency is not monotone)
        useful = useful_sizes(costs)
        options, costs = ([values[place] for place in useful] for values in (options, costs))
        curves[name] = Curve(options, losses[name][options].tolist(),
                             [cost - costs[0] for cost in costs])
        left += now - costs[0]
    # linear around the given sizes, not around the cheapest, where sites in one product save less
    return allocate(curves, max(left, 0))


def shared_sizes(offered: Mapping[str, list[int]], losses: Mapping[str, Tensor], macs: CostModel,
                 target: int) -> dict[str, int]:
    """Sizes on offer with the least sum of losses within a budget that can be met.

    The costs of a site are taken at the other sites' sizes of the previous round, until nothing
    changes. Arguments are those of :func:`fitted_sizes`.
    """
    # steps from one size to the next would stop at one that is slower than the sizes around it
    offered = useful_options(macs, offered)
    sizes = {name: options[-1] for name, options in offered.items()}
    best, least = uniform_sizes(offered, macs, target), math.inf
    # rounds may alternate between two solutions: the best one seen is kept
    for _ in range(20):
        chosen = _cheapest_loss(sizes, offered, losses, macs, target)
        # a fixed point: its costs are those that it was chosen by
        if chosen == sizes and FILLED * target <= macs(sizes) <= target:
            return sizes
        chosen = fitted_sizes(chosen, offered, losses, macs, target)
        lost = _lost(chosen, losses)
        if lost >= least and chosen == sizes:
            break
        if lost < least and macs(chosen) <= target:
            best, least = chosen, lost
        sizes = chosen
    return best


def fitted_sizes(sizes: Mapping[str, int], offered: Mapping[str, list[int]],
                 losses: Mapping[str, Tensor], macs: CostModel,
                 target: int) -> dict[str, int]:
    """Adjust sizes to a budget: interacting costs make a first solution miss it.

    Sites shrink until the budget is met, at each step the one with the least loss per saving. Then
    they grow while there is room, at each step the one with the largest gain per cost. If the steps
    are too coarse to use the rest of the budget, one site makes room for others.

    By site, ``offered`` are its sizes, ascending, and ``losses`` those with k units, k = 0 … total.
    """
    def moves(sizes: Mapping[str, int], step: int) -> list[tuple[float, str, int]]:
        now, steps = macs(sizes), []
        for name, options in offered.items():
            place = options.index(sizes[name]) + step
            if 0 <= place < len(options):
                # both are positive in either direction; the largest score is best
                cost = (macs({**sizes, name: options[place]}) - now) * step
                loss = float(losses[name][sizes[name]] - losses[name][options[place]]) * step
                if cost > 0 and (step < 0 or now + cost <= target):
                    steps.append((loss / cost * step, name, options[place]))
        return steps

    def grown(sizes: Mapping[str, int], without: str | None = None) -> dict[str, int]:
        while True:
            steps = [move for move in moves(sizes, 1) if move[1] != without]
            if not steps:
                return dict(sizes)
            sizes = {**sizes, max(steps)[1]: max(steps)[2]}

    sizes = dict(sizes)
    # down to the budget, then up into what is left of it
    while macs(sizes) > target and moves(sizes, -1):
        _, name, size = max(moves(sizes, -1))
        sizes[name] = size
    sizes = grown(sizes)
    # each round one site gives way and all others grow; rounds are as many as sites at most
    for _ in offered:
        if macs(sizes) >= FILLED * target:
            break
        others = [grown({**sizes, name: size}, name) for _, name, size in moves(sizes, -1)]
        fuller = [other for other in others if macs(other) > macs(sizes)]
        if not fuller:
            break
        sizes = min(fuller, key=lambda other: (macs(other) < FILLED * target, _lost(other, losses)))
    return sizes


def uniform_sizes(offered: Mapping[str, list[int]], macs: CostModel, target: int) -> dict[str, int]:
    """The largest common share for all sites within the budget."""
    def at(share: float) -> dict[str, int]:
        return {name: max([size for size in options if size <= share * options[-1] + 1e-9]
                          or options[:1]) for name, options in offered.items()}

    if macs(at(1.)) <= target:
        return at(1.)
    shares = sorted({size / options[-1] for options in offered.values() for size in options})
    fitting = bisect_right(shares, target, key=lambda share: macs(at(share)))
    return at(shares[max(fitting - 1, 0)])

"""How many units every site keeps under a budget: least loss, and a budget that is used."""

import math
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from torch import Tensor

from mmkcr.core import CostModel
from mmkcr.core.allocation import Curve, allocate
from mmkcr.core.budget import allowed_sizes
from mmkcr.core.latency import useful_sizes
from mmkcr.models.searchable import SearchSpace
from mmkcr.models.sites.base import HostSite
from mmkcr.models.sites.embedding import Embedding
from .site_profiles import CompressOptions, SiteProfile

#: Share of a budget that an allocation uses at least where the sites' sizes allow it.
FILLED = 0.97


def size_options(site: HostSite, settings: CompressOptions) -> List[int]:
    """Sizes that a site may have, ascending; of channels of heads equally many of every head."""
    total = site.total // site.rows
    divisor = settings.divisor if total >= 4 * settings.divisor else 1
    least = 0 if site.operators() else max(1, round(settings.min_share * total))
    sizes = allowed_sizes(total, least, divisor)
    return [size * site.rows for size in sizes]


def check_reach(space: SearchSpace, macs: CostModel, target: int,
                settings: CompressOptions) -> None:
    """Refuse a target that no sizes of the sites meet.

    Args:
        space (SearchSpace): Of the dense backbone.
        macs (CostModel): Of the sites' sizes.
        target (int): Most cost.
        settings (CompressOptions): Sizes on offer.

    Raises:
        ValueError: The target is out of reach; the message gives the range.
    """
    least = {name: size_options(site, settings)[0] for name, site in space.sites.items()}
    macs.check_target(target, least)


def share_out(space: SearchSpace, profiles: Mapping[str, SiteProfile],
              macs: CostModel, target: int,
              settings: CompressOptions) -> Dict[str, int]:
    """Sizes of all sites with the least sum of losses within the budget.

    Costs depend on each other where sites meet in one product. A residual stream is in all
    products, so its widths are tried and the rest is shared out for each of them: coarsely first,
    then beside the best.

    Args:
        space (SearchSpace): Of the dense backbone.
        profiles (Mapping[str, SiteProfile]): By site.
        macs (CostModel): Of the sites' sizes.
        target (int): Most cost.
        settings (CompressOptions): Sizes on offer, and whether to share out at all.

    Returns:
        dict[str, int]: By site.

    Raises:
        ValueError: The target is out of reach; the message gives the range.
    """
    check_reach(space, macs, target, settings)
    offered = {name: size_options(site, settings) for name, site in space.sites.items()}
    if settings.uniform:
        return uniform_sizes(offered, macs, target)
    losses = {name: profiles[name].losses for name in offered}
    streams = [name for name, site in space.sites.items() if isinstance(site, Embedding)]
    best = _shared(offered, losses, macs, target)
    tried: Dict[Tuple[int, ...], Dict[str, int]] = {}

    def within(widths: Mapping[str, int]) -> Dict[str, int]:
        """What is best with streams of these widths."""
        key = tuple(widths.values())
        if key not in tried:
            fixed = {**offered, **{name: [width] for name, width in widths.items()}}
            least = {name: options[0] for name, options in fixed.items()}
            tried[key] = _shared(fixed, losses, macs, target) if macs(least) <= target else best
        return tried[key]

    def better(widths: Iterable[Mapping[str, int]]) -> Dict[str, int]:
        return min([best, *map(within, widths)], key=lambda sizes: _lost(sizes, losses))

    if streams:
        best = better([{name: offered[name][-1] for name in streams}])  # as if there were none
    changed = bool(streams)
    while changed:
        before = best
        for name in streams:
            options = offered[name]
            step = -(-len(options) // 8)
            near = range(len(options) - 1, -1, -step)
            while True:
                best = better({**{other: best[other] for other in streams}, name: options[place]}
                              for place in near)
                if step == 1:
                    break
                step, place = -(-step // 2), options.index(best[name])
                near = [place + side for side in (-step, step) if 0 <= place + side < len(options)]
        changed = best != before
    return best


def _lost(sizes: Mapping[str, int], losses: Mapping[str, Tensor]) -> float:
    return sum(float(losses[name][size]) for name, size in sizes.items())


def _shared(offered: Mapping[str, List[int]], losses: Mapping[str, Tensor], macs: CostModel,
            target: int) -> Dict[str, int]:
    """Sizes of those on offer with the least sum of losses within a budget that can be met.

    Costs of a site are taken at the other sites' sizes of the round before, until nothing changes.
    """
    sizes = {name: options[-1] for name, options in offered.items()}
    best, least = uniform_sizes(offered, macs, target), math.inf
    for _ in range(20):
        curves = {}
        for name, options in offered.items():
            costs = [int(macs({**sizes, name: size})) for size in options]
            useful = useful_sizes(costs)
            options, costs = ([values[place] for place in useful] for values in (options, costs))
            curves[name] = Curve(options, losses[name][options].tolist(),
                                 [cost - costs[0] for cost in costs])
        floor = macs({name: curve.sizes[0] for name, curve in curves.items()})
        chosen = allocate(curves, max(target - floor, 0))
        if chosen == sizes and FILLED * target <= macs(sizes) <= target:
            return sizes
        chosen = fitted_sizes(chosen, offered, losses, macs, target)
        lost = _lost(chosen, losses)
        if lost >= least and chosen == sizes:
            break
        if lost < least:
            best, least = chosen, lost
        sizes = chosen
    return best


def fitted_sizes(sizes: Mapping[str, int], offered: Mapping[str, List[int]],
                 losses: Mapping[str, Tensor], macs: CostModel,
                 target: int) -> Dict[str, int]:
    """Sizes within the budget that use it: costs that depend on each other miss it.

    Sites shrink, the one that loses least for what it saves first, until the budget is met; then
    they grow, the one that gains most for what it costs first, while there is room. Where steps
    are too coarse for the rest of the budget, one site makes room for others.

    Args:
        sizes (Mapping[str, int]): To start from, by site.
        offered (Mapping[str, list[int]]): Sizes that a site may have, ascending.
        losses (Mapping[str, Tensor]): Of a site with k units, k = 0 … total.
        macs (CostModel): Of the sites' sizes.
        target (int): Most cost.
    """
    def moves(sizes: Mapping[str, int], step: int) -> List[Tuple[float, str, int]]:
        now, found = macs(sizes), []
        for name, options in offered.items():
            place = options.index(sizes[name]) + step
            if 0 <= place < len(options):
                cost = (macs({**sizes, name: options[place]}) - now) * step
                loss = float(losses[name][sizes[name]] - losses[name][options[place]]) * step
                if cost > 0 and (step < 0 or now + cost <= target):
                    found.append((loss / cost * step, name, options[place]))
        return found

    def grown(sizes: Mapping[str, int], without: Optional[str] = None) -> Dict[str, int]:
        while True:
            found = [move for move in moves(sizes, 1) if move[1] != without]
            if not found:
                return dict(sizes)
            sizes = {**sizes, max(found)[1]: max(found)[2]}

    sizes = dict(sizes)
    while macs(sizes) > target and moves(sizes, -1):
        _, name, size = max(moves(sizes, -1))
        sizes[name] = size
    sizes = grown(sizes)
    for _ in offered:
        if macs(sizes) >= FILLED * target:
            break
        others = [grown({**sizes, name: size}, name) for _, name, size in moves(sizes, -1)]
        fuller = [other for other in others if macs(other) > macs(sizes)]
        if not fuller:
            break
        sizes = min(fuller, key=lambda other: (macs(other) < FILLED * target, _lost(other, losses)))
    return sizes


def uniform_sizes(offered: Mapping[str, List[int]], macs: CostModel, target: int) -> Dict[str, int]:
    """The largest common share of all sites within the budget."""
    def at(share: float) -> Dict[str, int]:
        return {name: max([size for size in options if size <= share * options[-1] + 1e-9]
                          or options[:1]) for name, options in offered.items()}

    low, high = 0., 1.
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if macs(at(middle)) <= target else (low, middle)
    return at(1.) if macs(at(1.)) <= target else at(low)

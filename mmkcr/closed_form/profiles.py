"""Profiles of every site of a dense network, and the sizes that they give within a budget."""

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmkcr.core import CostModel
from mmkcr.core.budget import Curve, allocate, allowed_sizes
from mmkcr.core.cost import useful_options, useful_sizes
from mmkcr.core.processes import count_processes
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites.base import HostSite
from .batches import (
    Share,
    count_images,
    first_images,
    last_images,
    number_batches,
    of_size,
    show_images,
    take_share,
)
from .calibration import output_changes, passes
from .given import Calibration
from .heads import NarrowHeads, RotaryHeads, take_weights
from .options import STATISTICS, CompressOptions, SiteProfile
from .readers import Rows
from .units import Units

#: Least share of a budget that an allocation uses if the sites' sizes allow it.
FILLED = 0.97
#: Classes that profile the units of a site, by :attr:`HostSite.bases`.
_FORMS = {None: Units, 'channels': NarrowHeads, 'pairs': RotaryHeads}


def profile_sites(calibration: Calibration, space: SearchSpace) -> dict[str, SiteProfile]:
    """Orders and losses of all sites, from one pass forward and backward for a group of sites.

    Profiling rotates heads that may become narrower to other bases, in place, in the dense network;
    its function stays. A profile holds the rotated weights. Progress gives the profiles of an
    earlier call, and gets each group's.

    Args:
        calibration (Calibration): The dense network, images and options.
        space (SearchSpace): The sites of the dense network.

    Raises:
        ValueError: The outputs depend on no site, or no image reaches a site.
    """
    done = calibration.done
    profiles = {} if done is None else done.profiles()
    for profile in profiles.values():
        take_weights(space.host, profile.rotated)
    groups = _groups_left(calibration, space, profiles)
    for number, group in enumerate(groups, 1):
        part = f' ({number} of {len(groups)})' if len(groups) > 1 else ''
        profiles.update(_profile_group(calibration, group, part))
        group.clear()  # with its statistics
        if done is not None:
            done.save_profiles(profiles)
    if profiles and not any(bool(profile.losses.any()) for profile in profiles.values()):
        raise ValueError('expected outputs that change with the units of the network, found that '
                         f'they depend on none of its {len(profiles)} sites (is the last layer '
                         'all zeros?)')
    return {name: profiles[name] for name in space.sites}


def count_groups(calibration: Calibration, space: SearchSpace) -> int:
    """Number of groups of sites that :func:`profile_sites` profiles in turn."""
    done = calibration.done
    return len(_groups_left(calibration, space, {} if done is None else done.profiles()))


def _groups_left(calibration: Calibration, space: SearchSpace,
                 known: Mapping[str, SiteProfile]) -> list[list[Units]]:
    """Sites without a known profile, in groups whose statistics fit into the memory."""
    settings = calibration.settings
    left = [units_of(site, settings) for name, site in space.sites.items() if name not in known]
    return _groups(left, int(STATISTICS * settings.memory))


def units_of(site: HostSite, settings: CompressOptions) -> Units:
    """The units of a site, to be profiled in the bases that the site may be moved to."""
    return _FORMS[site.bases](site, settings)


def _groups(sites: Sequence[Units], most: int) -> list[list[Units]]:
    """Neighbouring sites whose statistics fit into a number of bytes; at least one a group."""
    groups: list[list[Units]] = []
    size = most
    for one in sites:
        if size + one.bytes() > most:
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += one.bytes()
    return groups


def _profile_group(calibration: Calibration, group: Sequence[Units],
                   part: str) -> dict[str, SiteProfile]:
    """Profiles of some sites, see :func:`profile_sites`; ``part`` is shown with the progress."""
    _observe(calibration, group, part)
    # here the network's heads are rotated
    profiles = {one.site.name: _unread_profile(one.site) if one.is_unread() else one.profile()
                for one in group}
    if calibration.settings.probe_images:
        _measure_losses(calibration, group, profiles)
    return profiles


def _unread_profile(site: HostSite) -> SiteProfile:
    """The profile of a site that no output depends on."""
    losses = torch.zeros(site.total + 1, dtype=torch.float64)
    return SiteProfile(torch.arange(site.total), losses, unread=True)


def _observe(calibration: Calibration, group: Sequence[Units], part: str) -> None:
    """Run images forward and backward, and fill the moments of a group of sites.

    One pass serves orders and bases of heads, as both use its activations.
    """
    dense, surveyed, settings = calibration.dense, calibration.survey, calibration.settings
    layers = [(one.site.module(path), sensitive) for one in group
              for path, sensitive in one.layers().items()]
    enough = settings.per_unit[0]
    needed = surveyed.needed([layer for layer, _ in layers], enough, settings.least_images)
    backward = surveyed.needed([layer for layer, sensitive in layers if sensitive], enough,
                               settings.backward_images, gradients=True)
    batches = first_images(calibration.batches, needed)
    rows = Rows(settings.rows, enough, count_images(batches))
    # no batch has images of both kinds: its size, which is of the free memory, changes nothing
    edge = len(first_images(batches, backward))
    parts = [of_size(some, calibration.size)
             for some in (batches[:edge], batches[edge:]) if len(some)]
    bar = show_images(_number_shares(parts), f'Orders of units{part}', count_images(batches),
                      settings.progress)
    observers = [observer for one in group for observer in one.observers(rows)]
    for _ in passes(dense, bar, calibration.compared, observers, settings.logits, settings.seed,
                    surveyed.scales, backward):
        pass
    for one in group:
        one.share_moments()


def _measure_losses(calibration: Calibration, group: Sequence[Units],
                    profiles: Mapping[str, SiteProfile]) -> None:
    """Measure the losses of some sizes on a few images, and scale the profiles to them, in place.

    In losses from moments positions count as independent.
    """
    settings = calibration.settings
    several = {one.site.name: one for one in group
               if one.site.total > 1 and not profiles[one.site.name].unread}
    changes = {name: one.changes(profiles[name].order) for name, one in several.items()}
    if not changes:
        return
    probes = of_size(last_images(calibration.batches, settings.probe_images), calibration.size)
    numbered = number_batches(take_share(probes))
    bar = show_images(numbered, 'Losses of sizes', count_images(probes), settings.progress)
    measured = output_changes(calibration.dense, bar, calibration.compared, changes,
                              settings.logits, settings.seed, calibration.survey.scales)
    for name, one in several.items():
        _fit_to_measured(profiles[name], one.probe_sizes(), measured[name])


def _number_shares(parts: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, range]]:
    """The share of this process in several parts of the images, with the numbers among all."""
    if count_processes() == 1:
        yield from number_batches(itertools.chain.from_iterable(parts))
        return
    first = 0
    for share in map(Share, parts):
        for batch, images in number_batches(share):
            yield batch, range(first + images.start, first + images.stop)
        first += share.total


def _fit_to_measured(profile: SiteProfile, places: Sequence[int], measured: Tensor) -> None:
    """Scale a site's losses, in place, to the measured change of the outputs at some sizes.

    Between two measured sizes the loss is interpolated, in the shape of the moments' loss.

    Args:
        profile (SiteProfile): Profile of the site; it gets other losses.
        places (Sequence[int]): Sizes that were measured, ascending.
        measured (Tensor): Their measured losses.
    """
    losses, last = profile.losses, len(profile.losses) - 1
    # the loss of all units is 0; measured ones never grow with the size
    known = measured.to(losses).flip(0).cummax(0).values.flip(0).tolist()
    points = [*zip(places, known), *([(last, 0.)] if places[-1] < last else [])]
    scaled = losses * (known[0] / losses[places[0]].clamp(min=1e-30))  # below the least size
    for (low, most), (high, least) in zip(points, points[1:]):
        between = losses[low:high + 1]
        share = ((between - between[-1]) / (between[0] - between[-1]).clamp(min=1e-30)).clamp(0, 1)
        scaled[low:high + 1] = least + (most - least) * share
    profile.losses = scaled.flip(0).cummax(0).values.flip(0)


def size_options(site: HostSite, settings: CompressOptions) -> list[int]:
    """Sizes that a site may have, ascending; for channels of heads, equally many in every head.

    Args:
        site (HostSite): The site.
        settings (CompressOptions): Options; ``divisor`` and ``min_share`` count.
    """
    total, divisor = site.total // site.rows, settings.divisor
    while total < 4 * divisor and divisor > 8 and divisor % 2 == 0:
        divisor //= 2
    divisor = divisor if total >= 4 * divisor else 1
    least = max(1, round(settings.min_share * total))
    sizes = allowed_sizes(total, least, divisor)
    return [size * site.rows for size in sizes]


def _total_loss(sizes: Mapping[str, int], losses: Mapping[str, Tensor]) -> float:
    """Sum of the sites' losses at some sizes."""
    return sum(float(losses[name][size]) for name, size in sizes.items())


def _cheapest_loss(sizes: Mapping[str, int], offered: Mapping[str, list[int]],
                   losses: Mapping[str, Tensor], macs: CostModel, target: int) -> dict[str, int]:
    """Sizes with the least sum of losses; the cost of each is taken at given sizes of the rest.

    Arguments are those of :func:`fit_sizes`.
    """
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


def choose_sizes(offered: Mapping[str, list[int]], profiles: Mapping[str, SiteProfile],
                 macs: CostModel, target: int, uniform: bool) -> dict[str, int]:
    """Sizes on offer within a budget that can be met.

    Args:
        offered (Mapping[str, list[int]]): Sizes on offer by site, ascending.
        profiles (Mapping[str, SiteProfile]): Profiles by site, with the losses at all sizes.
        macs (CostModel): Cost of a network as a function of its sizes.
        target (int): The budget, in the unit of ``macs``.
        uniform (bool): One share for all sites, see :func:`uniform_sizes`; otherwise see
            :func:`share_budget`.
    """
    if uniform:
        return uniform_sizes(offered, macs, target)
    return share_budget(offered, {name: profiles[name].losses for name in offered}, macs, target)


def share_budget(offered: Mapping[str, list[int]], losses: Mapping[str, Tensor], macs: CostModel,
                 target: int) -> dict[str, int]:
    """Sizes on offer with the least sum of losses within a budget that can be met.

    The costs of a site are taken at the other sites' sizes of the previous round, until nothing
    changes.

    Args:
        offered (Mapping[str, list[int]]): Sizes on offer by site, ascending.
        losses (Mapping[str, Tensor]): By site, its loss with k units, k = 0 … total.
        macs (CostModel): Cost of a network as a function of its sizes.
        target (int): The budget, in the unit of ``macs``.
    """
    # steps from one size to the next would stop at one that is slower than the sizes around it
    offered = useful_options(macs, offered)
    sizes = {name: options[-1] for name, options in offered.items()}
    best, least = uniform_sizes(offered, macs, target), math.inf
    # rounds may alternate between two solutions: the best one seen is kept
    for _ in range(20):
        chosen = _cheapest_loss(sizes, offered, losses, macs, target)
        # a fixed point: it was chosen by its own costs
        if chosen == sizes and FILLED * target <= macs(sizes) <= target:
            return sizes
        chosen = fit_sizes(chosen, offered, losses, macs, target)
        lost = _total_loss(chosen, losses)
        if lost >= least and chosen == sizes:
            break
        if lost < least and macs(chosen) <= target:
            best, least = chosen, lost
        sizes = chosen
    return best


def fit_sizes(sizes: Mapping[str, int], offered: Mapping[str, list[int]],
              losses: Mapping[str, Tensor], macs: CostModel, target: int) -> dict[str, int]:
    """Adjust sizes to a budget: interacting costs make a first solution miss it.

    Sites shrink until the budget is met, at each step the site with the least loss per saving. Then
    they grow while there is room, at each step the site with the largest gain per cost. If the
    steps are too coarse to use the rest of the budget, a site makes room for others.

    Args:
        sizes (Mapping[str, int]): Sizes to begin with, by site.
        offered (Mapping[str, list[int]]): Sizes on offer by site, ascending.
        losses (Mapping[str, Tensor]): By site, its loss with k units, k = 0 … total.
        macs (CostModel): Cost of a network as a function of its sizes.
        target (int): The budget, in the unit of ``macs``.
    """
    def moves(sizes: Mapping[str, int], step: int) -> list[tuple[float, str, int]]:
        """Next sizes up (step 1) or down (-1): score, site and size; the largest score is best."""
        now, steps = macs(sizes), []
        for name, options in offered.items():
            place = options.index(sizes[name]) + step
            if 0 <= place < len(options):
                # both are positive in either direction
                cost = (macs({**sizes, name: options[place]}) - now) * step
                loss = float(losses[name][sizes[name]] - losses[name][options[place]]) * step
                if cost > 0 and (step < 0 or now + cost <= target):
                    steps.append((loss / cost * step, name, options[place]))
        return steps

    def fill_budget(sizes: Mapping[str, int], without: str | None = None) -> dict[str, int]:
        """Larger sizes of all sites but ``without``, up to the budget."""
        while True:
            steps = [move for move in moves(sizes, 1) if move[1] != without]
            if not steps:
                return dict(sizes)
            sizes = {**sizes, max(steps)[1]: max(steps)[2]}

    sizes = dict(sizes)
    # down to the budget, then up into the rest of it
    while macs(sizes) > target and moves(sizes, -1):
        _, name, size = max(moves(sizes, -1))
        sizes[name] = size
    sizes = fill_budget(sizes)
    # each round one site gives way and all others grow; rounds are as many as sites at most
    for _ in offered:
        if macs(sizes) >= FILLED * target:
            break
        others = [fill_budget({**sizes, name: size}, name) for _, name, size in moves(sizes, -1)]
        fuller = [other for other in others if macs(other) > macs(sizes)]
        if not fuller:
            break
        sizes = min(fuller, key=lambda other: (
            macs(other) < FILLED * target, _total_loss(other, losses)))
    return sizes


def uniform_sizes(offered: Mapping[str, list[int]], macs: CostModel, target: int) -> dict[str, int]:
    """The largest common share of all sites within the budget.

    Args:
        offered (Mapping[str, list[int]]): Sizes on offer by site, ascending.
        macs (CostModel): Cost of a network as a function of its sizes.
        target (int): The budget, in the unit of ``macs``.
    """
    def at(share: float) -> dict[str, int]:
        return {name: max([size for size in options if size <= share * options[-1] + 1e-9]
                          or options[:1]) for name, options in offered.items()}

    if macs(at(1.)) <= target:
        return at(1.)
    shares = sorted({size / options[-1] for options in offered.values() for size in options})
    fitting = bisect_right(shares, target, key=lambda share: macs(at(share)))
    return at(shares[max(fitting - 1, 0)])

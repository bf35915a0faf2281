"""Profiles of every site of a dense network, measured on calibration images."""

import itertools
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor

from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites.heads import HeadChannels
from mmkcr.models.sites.rotary_pairs import RotaryPairs
from mmkcr.visualization import shown
from .batches import count_images, first_images, images_of, last_images, of_size
from .calibration import collect, output_changes
from .given import Calibration
from .head_rotation import NarrowHeads, take_weights
from .options import STATISTICS, CompressOptions, SiteProfile
from .readers import Rows
from .rotary import RotaryHeads
from .units import Units

#: Kinds of site whose units are in bases of their own.
_FORMS = {HeadChannels: NarrowHeads, RotaryPairs: RotaryHeads}


def profile_sites(calibration: Calibration, space: SearchSpace) -> dict[str, SiteProfile]:
    """Orders and losses of all sites, from one pass forward and backward for a group of sites.

    Heads that may become narrower are then rotated to other bases, in place, which does not change
    the network's function. Progress gives the profiles of an earlier call, and gets each group's.

    Raises:
        ValueError: A site is not reached, an activation is not finite, or the outputs depend on
            no site.
    """
    done, settings = calibration.done, calibration.settings
    profiles = {} if done is None else done.profiles()
    for profile in profiles.values():
        take_weights(space.host, profile.rotated)
    forms = _FORMS if settings.choose is None else {}  # for a control's order nothing is rotated
    groups = _groups([forms.get(type(site), Units)(site, settings)
                      for name, site in space.sites.items() if name not in profiles],
                     int(STATISTICS * settings.memory))
    for number, group in enumerate(groups, 1):
        part = f' ({number} of {len(groups)})' if len(groups) > 1 else ''
        profiles.update(_profile_group(calibration, group, part))
        group.clear()  # with its statistics
        if done is not None:
            done.save_profiles(profiles)
    if settings.choose is None and profiles and not any(
            bool(profile.losses.any()) for profile in profiles.values()):
        raise ValueError('expected outputs that change with the units of the network, found that '
                         f'they depend on none of its {len(profiles)} sites (is the last layer '
                         'all zeros?)')
    return {name: profiles[name] for name in space.sites}


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
    dense, surveyed, settings = calibration.dense, calibration.survey, calibration.settings
    # by `site:path`, as two sites may share a layer
    layers = {f'{one.site.name}:{path}': layer for one in group
              for path, layer in one.layers().items()}
    projections = {f'{one.site.name}:{path}': layer for one in group
                   for path, layer in one.projections().items()}
    enough = settings.per_unit[0]
    batches = first_images(calibration.batches, surveyed.needed(
        {**layers, **projections}.values(), enough, settings.least_images))
    rows = Rows(settings.rows, enough, count_images(batches))
    backward = surveyed.needed(layers.values(), enough, settings.backward_images, gradients=True)
    # no batch has images of both kinds: its size, which is of the free memory, changes nothing
    edge = len(first_images(batches, backward))
    parts = (of_size(part, calibration.size)
             for part in (batches[:edge], batches[edge:]) if len(part))
    # one pass: orders and bases of heads use the same activations
    with ExitStack() as stack:
        for one in group:
            stack.enter_context(one.observing())
        bar = shown_images(itertools.chain.from_iterable(parts), f'Orders of units{part}',
                           settings, count_images(batches))
        moments = collect(dense, bar, calibration.forward, layers, rows, settings.logits,
                          settings.seed, surveyed.scales, projections, backward)
    profiles = {}
    for one in group:
        one.moments = {path: moments[f'{one.site.name}:{path}']
                       for path in {**one.layers(), **one.projections()}}
        profiles[one.site.name] = one.profile()  # here the network's heads are rotated
    # so far positions count as independent; probes measure the real loss at some sizes
    changes = {one.site.name: one.changes(profiles[one.site.name].order) for one in group
               if one.site.total > 1 and settings.choose is None and settings.probe_images}
    if changes:
        probes = of_size(last_images(calibration.batches, settings.probe_images), calibration.size)
        measured = output_changes(
            dense, shown_images(probes, 'Losses of sizes', settings), calibration.forward, changes,
            settings.logits, settings.seed, surveyed.scales)
        for one in group:
            if one.site.name in measured:
                _fit_to_measured(profiles[one.site.name], one.probed(), measured[one.site.name])
    return profiles


def _fit_to_measured(profile: SiteProfile, places: Sequence[int], measured: Tensor) -> None:
    """Scale a site's losses, in place, to the measured change of the outputs at some sizes.

    Between two measured sizes the loss rises as that of the moments does, from one to the other.
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


def shown_images(batches: Iterable[Any], what: str, settings: CompressOptions,
                 count: int | None = None) -> Iterable[Any]:
    """Batches, with a bar that counts their images if the options want one; all by default."""
    count = count_images(batches) if count is None else count
    return shown(batches, f'{what}, images', count, visible=settings.progress, size=images_of)

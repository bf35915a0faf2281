"""Profiles of every site of a dense network, measured on calibration images (SPEC 9)."""

import dataclasses
import zlib
from contextlib import ExitStack
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import torch
from torch import Tensor, nn

from mmkcr.functional.moments import Moments
from mmkcr.functional.pivots import UnitOrder, pivot_order
from mmkcr.functional.refit import refit
from mmkcr.models.batches import count_images, first_images, last_images, of_size
from mmkcr.models.calibration import (
    Forward,
    ReaderMoments,
    Rows,
    WeightChange,
    collect,
    ordering_readers,
    output_changes,
    output_energy,
    readers,
    weight_matrix,
)
from mmkcr.models.head_rotation import (
    HeadRotation,
    head_parts,
    layers_of,
    rotate_heads,
    take_weights,
)
from mmkcr.models.kernel_fit import HeadKernels
from mmkcr.models.rotary import TurnedMoments, key_change, rotate_pairs, turned_moments
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites.attention_width import AttentionWidth
from mmkcr.models.sites.base import HostSite
from mmkcr.models.sites.head_operator import HeadOperatorSite
from mmkcr.models.sites.heads import HeadChannels
from mmkcr.models.sites.rotary_pairs import RotaryPairs
from mmkcr.models.survey import Survey
from mmkcr.visualization.progress import shown as progress_bar


@dataclasses.dataclass(frozen=True)
class CompressOptions:
    """Options of a compression.

    Args:
        divisor (int): Sizes of hidden layers, channels and channels of a head are multiples of it,
            or full. Where there are fewer than four multiples, a divisor above 8 is halved; else
            any size is allowed. Defaults to 8.
        min_share (float): Minimum share of its units that a site keeps. Defaults to 0.05.
        uniform (bool): Use the same share for every site instead of the best allocation. Defaults
            to False.
        rho (float): Relative ridge of orders and refits. Defaults to 1e-3.
        rows (int): Maximum number of an image's positions that enter the moments of a layer, see
            :class:`~mmkcr.models.calibration.Rows`. Defaults to 256.
        per_unit (tuple[int, int]): Positions per input of a layer that are enough, for its order
            and for its refit. Defaults to (4, 12).
        least_images (int): Images that are used, if there are as many, even where fewer have enough
            positions: neighbours within an image are much alike. Defaults to 256.
        backward_images (int): Images that are also run backward in any case, for the orders.
            Defaults to 128: a layer has fewer outputs than its inputs that are units, so fewer rows
            of gradients do.
        probe_images (int): Images on which the losses of some sizes are measured. With 0 losses
            come from moments alone, as if an image's positions were independent. Defaults to 64.
        logits (bool): Whether the model's output is class scores (B, C). Defaults to False.
        progress (bool): Show a progress bar. Defaults to True.
        refit (str): How readers are refitted: ``'least-squares'``, or for controls ``'readers'``
            (only they: kernels in place of heads are not fitted),
            ``'mean'`` (only the bias, from the means) or ``'none'``. Defaults to
            ``'least-squares'``.
        choose (Callable, optional): For controls: takes a site, the moments of its first reader
            and a generator, and returns an order of its units that replaces the closed form's.
            Defaults to None.
        seed (int): Seed of all random draws. Defaults to 0.
        memory (int, optional): Bytes that may be taken beyond the networks themselves. Images of a
            batch and sites that are profiled together are as many as fit; one image at least.
            Defaults to None: half of what is free on the model's device.
    """

    divisor: int = 8
    min_share: float = 0.05
    uniform: bool = False
    rho: float = 1e-3
    rows: int = 256
    per_unit: Tuple[int, int] = (4, 12)
    least_images: int = 256
    backward_images: int = 128
    probe_images: int = 64
    logits: bool = False
    progress: bool = True
    refit: str = 'least-squares'
    choose: Optional[Callable[[HostSite, Moments, torch.Generator], Tensor]] = None
    seed: int = 0
    memory: Optional[int] = None


#: Shares of the memory: statistics of the sites that are profiled together, changed weights that
#: are tried in one pass, and each kind of activations that a refit keeps of all images. The rest is
#: for the activations of a batch and for what is computed from statistics.
STATISTICS, CHANGES, ACTIVATIONS = 1 / 4, 1 / 8, 1 / 8


@dataclasses.dataclass
class SiteProfile:
    """Result of the calibration of one site.

    Args:
        order (UnitOrder): Units by the readers' loss without them; channels of a unit.
        losses (Tensor): Loss of the network's outputs with the first k units, k = 0 … total, fp64;
            relative to the outputs, or in nats for class scores.
        rotated (dict[str, Tensor]): Weights, by path in the host, that the units refer to if these
            are not the network's own: see :mod:`mmkcr.models.head_rotation`. Defaults to none.
    """

    order: UnitOrder
    losses: Tensor
    rotated: Dict[str, Tensor] = dataclasses.field(default_factory=dict)

    def removed(self, count: int) -> float:
        """Share of the energy in the readers' outputs that is lost with the first units alone.

        Args:
            count (int): Number of kept units.
        """
        return float(self.order.errors[count] / self.order.errors[0].clamp(min=1e-30))


def profile_sites(dense: nn.Module, space: SearchSpace, batches: Sequence[Any], forward: Forward,
                  settings: CompressOptions, looked: Survey,
                  known: Optional[Mapping[str, SiteProfile]] = None,
                  finished: Optional[Callable[[Dict[str, SiteProfile]], None]] = None
                  ) -> Dict[str, SiteProfile]:
    """Orders and losses of all sites, from one pass forward and backward for a group of sites.

    Heads that may become narrower are then rotated to other bases, which does not change the
    network's function.

    Args:
        dense (nn.Module): The network; its attention is rotated in place.
        space (SearchSpace): Search space of its backbone.
        batches (Sequence): Calibration batches.
        forward (Callable): See :func:`compress`.
        settings (CompressOptions): As there, with a number for ``memory``.
        looked (Survey): Of the network.
        known (Mapping[str, SiteProfile], optional): Profiles of some sites, of an interrupted
            call. Defaults to none.
        finished (Callable, optional): Called behind each group but the last, with all profiles
            so far.

    Raises:
        ValueError: A site is not reached, an activation is not finite, or the outputs depend on
            no site.
    """
    profiles = dict(known or {})
    for profile in profiles.values():
        take_weights(space.host, profile.rotated)
    groups = _groups({name: site for name, site in space.sites.items() if name not in profiles},
                     int(STATISTICS * settings.memory))
    for number, sites in enumerate(groups, 1):
        part = f' ({number} of {len(groups)})' if len(groups) > 1 else ''
        profiles.update(_profile_group(dense, sites, batches, forward, settings, looked,
                                       part))
        if finished is not None and number < len(groups):
            finished(profiles)
    if settings.choose is None and profiles and not any(
            bool(profile.losses.any()) for profile in profiles.values()):
        raise ValueError('expected outputs that change with the units of the network, found that '
                         f'they depend on none of its {len(profiles)} sites (is the last layer '
                         'all zeros?)')
    return {name: profiles[name] for name in space.sites}


def _groups(sites: Mapping[str, HostSite], most: int) -> List[Dict[str, HostSite]]:
    """Neighbouring sites whose moments fit into a number of bytes; at least one a group."""
    groups: List[Dict[str, HostSite]] = []
    size = most
    for name, site in sites.items():
        # in fp64: moments of the inputs and, where units are ordered, of the outputs' gradients
        own = 8 * sum(
            sum(side**2 for side in weight_matrix(layer).shape)
            for layer in _ordered_by(site).values()) + 8 * sum(
            weight_matrix(layer).shape[1]**2 for layer in _rotated_layers(site).values())
        if isinstance(site, HeadOperatorSite):
            own += HeadKernels.bytes_of(site)
        if size + own > most:
            groups.append({})
            size = 0
        groups[-1][name] = site
        size += own
    return groups


def _ordered_by(site: HostSite) -> Dict[str, nn.Module]:
    """The layers whose moments give the order of a site's units, by path."""
    paths = (*(reader.path for reader in readers(site)), *site.lost_outputs())
    return {path: site.module(path) for path in paths}


def _rotated_layers(site: HostSite) -> Dict[str, nn.Module]:
    """The projections of heads that may become narrower, by path."""
    return layers_of(site) if isinstance(site, (HeadChannels, RotaryPairs)) else {}


def _profile_group(dense: nn.Module, sites: Mapping[str, HostSite], batches: Sequence[Any],
                   forward: Forward, settings: CompressOptions, looked: Survey, part: str
                   ) -> Dict[str, SiteProfile]:
    """Profiles of some sites, see :func:`profile_sites`; ``part`` is shown with the progress."""
    # by `site:path`, as two sites may share a layer
    layers = {f'{name}:{path}': layer for name, site in sites.items()
              for path, layer in _ordered_by(site).items()}
    # a control (`choose`) orders plain units: nothing is rotated or fitted for it
    narrowed = {name: site for name, site in sites.items() if settings.choose is None and
                isinstance(site, (HeadChannels, RotaryPairs))}
    pairs = {name: site for name, site in narrowed.items() if isinstance(site, RotaryPairs)}
    kernels = {name: HeadKernels(site, settings.rows, settings.rho)
               for name, site in sites.items() if settings.choose is None and
               isinstance(site, HeadOperatorSite)}
    projections = {f'{name}:{path}': layer for name, site in narrowed.items()
                   for path, layer in _rotated_layers(site).items()}
    size = looked.batch(settings.memory)
    probes = of_size(last_images(batches, settings.probe_images), size)
    enough = settings.per_unit[0]
    batches = first_images(batches, looked.needed({**layers, **projections}.values(), enough,
                                                  settings.least_images))
    rows = Rows(settings.rows, enough, count_images(batches))
    backward = looked.needed(layers.values(), enough, settings.backward_images, gradients=True)
    batches = of_size(batches, size)
    # one pass: orders, bases of heads and kernels all use the same activations
    with ExitStack() as stack:
        turned = stack.enter_context(turned_moments(pairs, settings.rows))
        for one in kernels.values():
            stack.enter_context(one)
        found = collect(dense, shown(batches, f'Orders of units{part}', settings), forward, layers,
                        rows, settings.logits, settings.seed, looked.scales,
                        {name: layer for name, layer in projections.items()
                         if name not in layers}, backward)
    # from here on the network and the moments of rotated heads are in the new bases
    rotations = {name: _rotated(name, site, found, turned.get(name), settings)
                 for name, site in narrowed.items()}
    _fit_kernels(dense, kernels, batches, forward, settings)
    profiles = {}
    for name, site in sites.items():
        if name in kernels:
            profiles[name] = _of_kernels(name, site, kernels[name], found)
        elif name in rotations:
            profiles[name] = _by_rotation(name, site, found, rotations[name])
        else:
            order = _order_of_units(name, site, found, settings)
            profiles[name] = SiteProfile(order, order.errors)
    # so far positions count as independent; probes measure the real loss at some sizes
    if settings.choose is None and settings.probe_images:
        inputs = {name: moments.inputs for name, moments in found.items()}
        with ExitStack() as stack:
            for one in kernels.values():
                stack.enter_context(one)
            _measure(dense, sites, profiles, inputs, kernels, probes, forward, settings, looked)
    return profiles


def _of_kernels(name: str, site: HeadOperatorSite, kernels: HeadKernels,
                found: Mapping[str, ReaderMoments]) -> SiteProfile:
    """Heads ordered by the error of their kernels, seen through the output projection."""
    moments = found[f'{name}:{site.view.output}']
    _check_reached(name, moments)
    units, losses = kernels.order(_sensitivity(moments))
    return SiteProfile(UnitOrder(units, losses, ()), losses)


def _order_of_units(name: str, site: HostSite, found: Mapping[str, ReaderMoments],
                    settings: CompressOptions) -> UnitOrder:
    """Units in the order in which they are kept: pivoted Cholesky, or a control's order."""
    covariances, grams, groups = _seen_by_readers(name, site, found)
    extra = None
    for path in site.lost_outputs():  # the unit's output is lost, too: diagonal terms
        moments = found[f'{name}:{path}']
        extra = output_energy(site.module(path), moments.inputs) * \
            _sensitivity(moments).diagonal()
    # errors of several readers are summed
    order = pivot_order(torch.stack(covariances), torch.stack(grams), groups, rho=settings.rho,
                        extra=extra)
    if settings.choose is None:
        return order
    inputs = found[f'{name}:{ordering_readers(site)[0].path}'].inputs
    # one for each site, so that a call that was interrupted draws what an unbroken one draws
    generator = torch.Generator().manual_seed(zlib.crc32(f'{settings.seed}:{name}'.encode()))
    return dataclasses.replace(order, order=settings.choose(site, inputs, generator))


def _loss_of_all(name: str, site: HostSite, found: Mapping[str, ReaderMoments]) -> float:
    """The loss without any of a site's units: the sum of tr(C G) over its readers."""
    covariances, grams, _ = _seen_by_readers(name, site, found)
    return sum(float((c * g.to(c)).sum()) for c, g in zip(covariances, grams))


def _seen_by_readers(name: str, site: HostSite, found: Mapping[str, ReaderMoments]
                     ) -> Tuple[List[Tensor], List[Tensor], Any]:
    """The covariance C of every reader's inputs, and the Gram matrix G of its columns.

    An error e of the inputs causes a loss of about ``e^T G e`` with ``G = W^T S W``, where S
    is the cost of an error of the reader's outputs at the network's outputs (SPEC 9).

    Returns:
        tuple: Covariances and Gram matrices (d, d), and the columns of each unit.
    """
    covariances, grams, groups = [], [], 1
    for reader in ordering_readers(site):
        layer, moments = site.module(reader.path), found[f'{name}:{reader.path}']
        own = reader.columns(layer)
        _check_reached(name, moments)
        sensitivity = _sensitivity(moments)
        weight = weight_matrix(layer)[:, own].double()
        covariances.append(_spread(layer, moments.inputs)[0][own, own])
        grams.append(weight.T @ sensitivity.to(weight) @ weight)
        groups = reader.each(layer) if reader.repeats == 1 else reader.of_units(
            layer, torch.arange(site.total), site.total).tolist()
    return covariances, grams, groups


def _spread(layer: nn.Module, inputs: Moments) -> Tuple[Tensor, Tensor]:
    """Second moment of a layer's inputs about what its bias can take, and that: the mean, or 0.

    A convolution without a bias has a norm behind it and counts as if it had one: EfficientViT-mini
    had 96.5 % of top-1 so, and 93.9 % by moments about 0 (45 % of the MACs, three networks).
    """
    if layer.bias is None and not isinstance(layer, nn.Conv2d):
        return inputs.second_moment, torch.zeros_like(inputs.mean)
    return inputs.covariance, inputs.mean


def _sensitivity(moments: ReaderMoments) -> Tensor:
    """S: the second moment of the gradients, summed over an image's positions."""
    return moments.positions * moments.gradients.second_moment


def _check_reached(name: str, moments: ReaderMoments) -> None:
    if moments.inputs.count == 0:
        raise ValueError(f'expected the calibration images to reach site `{name}`, found that they '
                         'do not')
    if moments.gradients.count == 0:
        raise ValueError(f'expected outputs that depend on site `{name}`, found that they do not: '
                         'let `forward` return those that do')


def _fit_kernels(dense: nn.Module, kernels: Mapping[str, HeadKernels], batches: Sequence[Any],
                 forward: Forward, settings: CompressOptions) -> None:
    """Fit the kernels of heads, and measure in a further pass their distance from attention."""
    if not kernels:
        return
    for one in kernels.values():
        one.fit()
    with ExitStack() as stack, torch.no_grad():
        for one in kernels.values():
            stack.enter_context(one)
        for batch in shown(batches, 'Kernels of heads', settings):
            forward(dense, batch)


def _rotated(name: str, site: AttentionWidth, found: Mapping[str, ReaderMoments],
             turned: Optional[TurnedMoments], settings: CompressOptions) -> HeadRotation:
    """Bases of heads that may become narrower; the layer and its moments are rotated to them."""
    moments = {path: found[f'{name}:{path}'].inputs for path in layers_of(site)}
    if any(entry.count == 0 for entry in moments.values()):
        raise ValueError(f'expected the calibration images to reach site `{name}`, found that '
                         'they do not')
    rotation = rotate_heads(site, moments, settings.rho) if turned is None else \
        rotate_pairs(site, moments, turned, settings.rho)
    take_weights(site.host, rotation.state)
    output = found[f'{name}:{site.view.output}']
    output.inputs = output.inputs.mixed(rotation.values)  # later orders see the rotated channels
    return rotation


def _by_rotation(name: str, site: AttentionWidth, found: Mapping[str, ReaderMoments],
                 rotation: HeadRotation) -> SiteProfile:
    """Profile in the units of the bases; losses in the unit of the output's errors."""
    losses = _loss_of_all(name, site, found) * rotation.errors
    return SiteProfile(UnitOrder(rotation.order, losses, ()), losses, rotation.state)


#: Values of :attr:`CompressOptions.refit`.
REFITS = ('least-squares', 'readers', 'mean', 'none')
#: Shares of a site's units at which its loss is measured.
PROBES = (0.25, 0.5, 0.75)


def _measure(dense: nn.Module, sites: Mapping[str, HostSite], profiles: Dict[str, SiteProfile],
             inputs: Mapping[str, Moments], kernels: Mapping[str, HeadKernels],
             batches: Sequence[Any], forward: Forward, settings: CompressOptions,
             looked: Survey) -> None:
    """Scale the sites' losses, in place, to the measured change of the outputs at some sizes.

    Between two measured sizes the loss rises as that of the moments does, from one to the other.
    """
    # a few sites at a time: one forward of the dense network serves all their changes
    waiting, places = list(sites), {
        name: _probed(site) for name, site in sites.items() if site.total > 1}
    while waiting:
        changes, size = {}, 0
        # at least one site, whatever its size
        while waiting and (not changes or size < CHANGES * settings.memory):
            name = waiting.pop(0)
            if name in places:
                changes[name] = _changes(sites[name], name, profiles[name].order,
                                         places[name], inputs, kernels.get(name),
                                         settings.rho)
                size += sum(change.deltas.numel() * 4 for change in changes[name])
        found = output_changes(dense, shown(batches, 'Losses of sizes', settings), forward,
                               changes, settings.logits, settings.seed,
                               looked.scales) if changes else {}
        for name, measured in found.items():
            _scale(profiles[name], places[name], measured)


def _scale(profile: SiteProfile, places: Sequence[int], measured: Tensor) -> None:
    """Correct a curve by measurements, ascending in size; its shape between them stays."""
    losses, last = profile.losses, len(profile.losses) - 1
    # the loss of all units is 0; measured ones never grow with the size
    known = measured.to(losses).flip(0).cummax(0).values.flip(0).tolist()
    points = [*zip(places, known), *([(last, 0.)] if places[-1] < last else [])]
    scaled = losses * (known[0] / losses[places[0]].clamp(min=1e-30))  # below the least size
    for (low, most), (high, least) in zip(points, points[1:]):
        own = losses[low:high + 1]
        share = ((own - own[-1]) / (own[0] - own[-1]).clamp(min=1e-30)).clamp(0, 1)
        scaled[low:high + 1] = least + (most - least) * share
    profile.losses = scaled.flip(0).cummax(0).values.flip(0)


def _probed(site: HostSite) -> List[int]:
    """The sizes at which a site's loss is measured."""
    # per group, as all groups keep equally many units
    count = site.total // site.rows
    if site.operators():  # none may be kept
        return sorted({0, *(round(share * count) for share in PROBES)} - {count})
    return sorted({min(max(round(share * count), 1), max(count - 1, 1)) * site.rows
                   for share in PROBES})


def _changes(site: HostSite, name: str, order: UnitOrder, counts: Sequence[int],
             inputs: Mapping[str, Moments], kernels: Optional[HeadKernels],
             rho: float) -> List[WeightChange]:
    """Changes of the readers' weights by refits to some numbers of units."""
    kept = [order.order[:count].sort().values for count in counts]
    if kernels is not None:
        return [kernels.change(kept)]
    changes = []
    for reader in readers(site):
        layer, moments = site.module(reader.path), inputs[f'{name}:{reader.path}']
        weight, own, deltas = weight_matrix(layer), reader.columns(layer), []
        covariance, mean = _spread(layer, moments)
        for units in kept:
            columns = reader.of_units(layer, units.to(weight.device), site.total).flatten()
            # W' on the columns of the kept units, minus W on all columns of the site
            delta = torch.zeros_like(weight)
            delta[:, own] -= weight[:, own]
            delta[:, own.start + columns] += refit(
                weight[:, own], None, covariance[own, own], mean[own], columns, rho)[0]
            deltas.append(delta)
        changes.append(WeightChange(layer, mean, torch.stack(deltas)))
    if isinstance(site, HeadChannels):
        changes.append(_narrower_keys(site, order, counts))
    if isinstance(site, RotaryPairs):
        changes.append(key_change(site, kept))
    return changes


def _narrower_keys(site: HeadChannels, order: UnitOrder, counts: Sequence[int]) -> WeightChange:
    """Keys without some channels: the logits are those without these channels of both.

    The softmax does not see what is the same for all keys, so the mean does not matter.
    """
    part = head_parts(site)[1]
    layer = site.module(part.path)
    keys = layer.weight.detach()[part.rows]  # of a projection that may be fused
    deltas = keys.new_zeros(len(counts), *keys.shape)
    for delta, count in zip(deltas, counts):
        lost = order.order[count:].to(delta.device)
        delta[lost] = -keys[lost]
    return WeightChange(layer, deltas.new_zeros(deltas.shape[-1]), deltas, outputs=part.rows)


def shown(items: Sequence[Any], what: str, settings: CompressOptions) -> Iterable[Any]:
    """Wrap items in a progress bar on standard error.

    Args:
        items (Sequence): The items.
        what (str): Text before the bar.
        settings (CompressOptions): Whether to show it.
    """
    if not settings.progress:
        return items
    return progress_bar(items, what)

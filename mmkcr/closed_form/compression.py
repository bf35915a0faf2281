"""Closed-form slimming: any checkpoint, minutes, no labels.

1. One pass of calibration images through the dense network gives, for every site, an order of its
   units by importance, and the loss of the network's outputs at every number of units.
2. A budget is shared out among the sites so that the sum of these losses is minimal.
3. Site after site is sliced. The layers that read the kept units are refitted to reproduce the
   dense network's outputs from the inputs that they get in the network compressed so far.
"""

import copy
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.core import CostModel, MacsModel, Structure, block_of, count_params
from mmkcr.core.machine import naming_remedy
from mmkcr.core.processes import find_rank, join_torchrun
from mmkcr.models.counting import (
    check_built,
    check_recorded,
    cost_model,
    note_backbone_macs,
    uncut_parts,
)
from mmkcr.models.search_space import SearchSpace, leave_ordinary
from mmkcr.models.sites import QKMaskSite
from mmkcr.models.sites.base import KindConfig, check_ties, kind_name
from mmkcr.models.tasks import (
    is_detector,
    keep_randomness,
    part_to_count,
    search_space,
    task_forward,
)
from .batches import first_images
from .given import Calibration, look_at, prepare_calibration
from .heads import take_weights
from .options import CompressOptions, Forward, Pair, SiteProfile, check_divisor, open_search_space
from .profiles import choose_sizes, count_groups, profile_sites, size_options
from .progress import CompressProgress
from .readers import readers
from .refit_blocks import refit_along
from .report import agreement, plan, result_text
from .whole import HeldBatches, whole_outputs


@dataclasses.dataclass(repr=False)
class CompressResult:
    """Result of :func:`compress`.

    Args:
        model (nn.Module): The subnet, a copy of the given model.
        structure (Structure): The kept units.
        profiles (dict[str, SiteProfile]): Profiles by site; another budget needs no new pass.
        agreement (dict[str, float]): On held-out images, see :func:`agreement`; ``refit_error`` is
            the error on as many of the refits' own.
    """

    model: nn.Module
    structure: Structure
    profiles: dict[str, SiteProfile]
    agreement: dict[str, float]

    def __str__(self) -> str:
        return result_text(self)

    __repr__ = __str__


def compress(model: nn.Module,
             images: Tensor | Sequence[Any],
             target: str | int | float,
             sites: Sequence[KindConfig] | None = None,
             input_shape: Sequence[int] | None = None,
             forward: Forward | None = None,
             held_out: Tensor | Sequence[Any] | None = None,
             profiles: Mapping[str, SiteProfile] | None = None,
             **options: Any) -> CompressResult:
    """Compress a network in closed form, from unlabelled images.

    Args:
        model (nn.Module): Dense model: any module with an adapter, or a task model of mmpretrain,
            mmdet or mmseg whose backbone has one. It is not changed.
        images (Tensor | Sequence): Calibration images (N, 3, H, W), or batches for ``forward``. In
            the scope ``'model'`` they are batches of the data preprocessor.
        target (str | int | float): Most of the cost that the subnet may have, as ``'60%'``.
        sites (Sequence[str | dict], optional): Kinds of site. Defaults to None: the kinds that the
            backbone has, see :class:`CompressOptions`.
        input_shape (Sequence[int], optional): (C, H, W) of the image that MACs are for. Defaults
            to None: the size of the images.
        forward (Callable, optional): Takes a model and a batch of ``images``; returns the outputs
            that are to agree. Defaults to calling the model, as the counting of MACs does anyway;
            in the scope ``'model'`` to :func:`~mmkcr.closed_form.whole.whole_outputs`.
        held_out (Tensor | Sequence, optional): Images that agreement is measured on. Defaults to
            None: the last tenth of ``images``; calibration does not see them then. A single image
            or batch serves for both.
        profiles (dict[str, SiteProfile], optional): Profiles of an earlier call with these
            images and sites. Defaults to None: they are computed.
        **options: All further fields of :class:`CompressOptions`.

    Returns:
        CompressResult: The subnet is made of plain modules wherever the host library can run it,
        see :func:`~mmkcr.models.search_space.leave_ordinary`.

    Raises:
        ValueError: No images, a model without an adapter or with gates, an unreachable target (the
            message gives the range), options that contradict each other, or activations or outputs
            that are not finite.

    Examples:
        >>> model = timm.create_model('vit_small_patch16_224', pretrained=True)
        >>> result = compress(model, images, '60%')
        >>> result.model(images)
    """
    asked = CompressOptions(target=target, sites=sites, input_shape=input_shape, **options)
    result = compress_network(model, images, asked, forward, held_out, profiles)
    leave_ordinary(result.model)
    return result


@torch.inference_mode(False)  # losses of units need gradients, wherever it is called
@keep_randomness()  # layers that are made for the subnet draw weights
@naming_remedy('give a lower `memory` (`--memory`), or smaller images')
def compress_network(model: nn.Module, images: Tensor | Sequence[Any], options: CompressOptions,
                     forward: Forward | None = None,
                     held_out: Tensor | Sequence[Any] | None = None,
                     profiles: Mapping[str, SiteProfile] | None = None,
                     done: CompressProgress | None = None) -> CompressResult:
    """Compress a network as :func:`compress`, and keep the search space of the result.

    Files of configs need the search space, as their backbone is built with one.

    Args:
        model (nn.Module): Dense model, see :func:`compress`. It is not changed.
        images (Tensor | Sequence): Calibration images (N, 3, H, W), or batches for ``forward``.
        options (CompressOptions): Target, sites and all other options.
        forward (Callable, optional): Takes a model and a batch; returns the outputs that are to
            agree. Defaults to None: see :func:`compress`.
        held_out (Tensor | Sequence, optional): Images that agreement is measured on. Defaults to
            None: the last tenth of ``images``.
        profiles (Mapping[str, SiteProfile], optional): Profiles by site of an earlier call.
            Defaults to None: they are computed.
        done (CompressProgress, optional): Progress of an interrupted call with these arguments;
            this call continues and extends it. Defaults to None.

    Returns:
        CompressResult: The subnet has the attribute ``search_space``.

    Raises:
        ValueError: See :func:`compress`.
    """
    join_torchrun()
    forward = forward or (whole_outputs if options.scope == 'model' else call_network)
    calibration = prepare_calibration(model, images, held_out, forward, done, options)
    dense, settings = calibration.dense, calibration.settings
    if settings.scope == 'model' and is_detector(dense):
        _hold_choices(calibration)
    networks = Pair(dense, copy.deepcopy(dense))
    # before anything that takes seconds for large images
    if settings.progress and find_rank() == 0:
        print(f'Calibration: looking at the network `{type(dense).__name__}` and the first images',
              file=sys.stderr, flush=True)
    spaces = Pair(*(open_search_space(network, settings.sites, settings.scope)
                    for network in networks))
    check_ties(networks.slim, spaces.slim.sites)
    check_divisor(spaces.slim, settings.divisor)
    look_at(calibration)
    shape, origin = calibration.find_input_shape()
    macs = macs_model(networks.slim, spaces.slim, shape, settings.part)
    budget = cost_model(settings.cost, macs, settings.latency)
    promises = [macs, *(cost_model(cost, macs) for cost in ('params', 'bytes'))]
    wanted = budget.parse_target(settings.target)
    offered = {name: size_options(site, settings) for name, site in spaces.slim.sites.items()}
    _check_reachable(budget, wanted, offered, spaces.slim, shape)
    if settings.progress:
        _print_plan(calibration, spaces.dense, bool(profiles))
    if profiles:
        _check_profiles(profiles, spaces.slim)
    else:
        profiles = profile_sites(calibration, spaces.dense)
    # layers that no output depends on stay, and the budget counts them
    offered.update({name: offered[name][-1:] for name in offered if profiles[name].unread})
    _check_reachable(budget, wanted, offered, spaces.slim, shape)
    # rotated heads: both networks compute the same as before, and units are now single channels
    for profile in profiles.values():
        for space in spaces:
            take_weights(space.host, profile.rotated)
    sizes = choose_sizes(offered, profiles, budget, wanted, settings.uniform)
    structure = _structure_of(spaces.slim, profiles, sizes, settings)
    # costs are promised before slicing, as sizes are counted on the dense sites
    if budget is not macs:
        structure.provenance[budget.name] = budget.describe(sizes)
    promised = [promise(sizes) for promise in promises]
    refit_along(networks, structure, calibration)
    check_built(promises, promised, shape)
    structure.provenance.update(dict(input_shape=origin) if origin else {})
    return make_result(networks, structure, macs, shape, calibration, profiles)


def _hold_choices(calibration: Calibration) -> None:
    """Keep the dense detector's proposals beside its images: outputs are compared on them.

    It exchanges the batches of the calibration.
    """
    chooser = copy.deepcopy(calibration.dense)
    calibration.batches = HeldBatches(calibration.batches, chooser)
    calibration.held_out = HeldBatches(calibration.held_out, chooser)


def _check_reachable(budget: CostModel, target: int, offered: Mapping[str, Sequence[int]],
                     space: SearchSpace, shape: Sequence[int]) -> None:
    """Refuse a target that the smallest sizes do not meet.

    Args:
        budget (CostModel): The cost as a function of the sizes.
        target (int): Most of that cost.
        offered (Mapping[str, Sequence[int]]): Sizes on offer by site, ascending.
        space (SearchSpace): The sites, whose paths tell the parts that nothing cuts.
        shape (Sequence[int]): (C, H, W) of the image that MACs are for.

    Raises:
        ValueError: The target is out of reach; the message gives the range.
    """
    try:
        budget.check_target(target, {name: sizes[0] for name, sizes in offered.items()})
    except ValueError as error:
        paths = [site.path for site in space.sites.values()]
        raise ValueError(f'{error}{uncut_parts(space.host, paths, shape)}') from error


def _print_plan(calibration: Calibration, space: SearchSpace, profiled: bool) -> None:
    """Print the work ahead and its time; the first images are run for it."""
    sites = space.sites.values()
    layers = [reader.layer for site in sites for reader in readers(site)]
    fits = sum(1 + len(site.lost_outputs()) for site in sites)
    blocks = {block_of(site.path) for site in sites}
    groups = 0 if profiled else count_groups(calibration, space)
    text = plan(calibration, layers, groups, fits / len(blocks))
    if find_rank() == 0:  # all count the groups, as the first reads the profiles for all
        print(text, file=sys.stderr, flush=True)


def _asked(options: CompressOptions) -> dict[str, Any]:
    """The options that a structure records, by name."""
    names = 'cost', 'sites', 'scope', 'compare', 'part', 'divisor', 'uniform', 'rho', 'augment'
    asked = {name: getattr(options, name) for name in names}
    return asked if options.latency is None else dict(asked, cost='latency')


def make_result(networks: Pair, structure: Structure, macs: MacsModel, shape: Sequence[int],
                calibration: Calibration, profiles: Mapping[str, SiteProfile]) -> CompressResult:
    """The result of a compression: sizes are noted in the structure, and outputs are compared.

    Args:
        networks (Pair): The dense network and the subnet.
        structure (Structure): Kept units; it gets MACs and parameters, in place.
        macs (MacsModel): MACs of the part that the budget counts, as a function of the sizes.
        shape (Sequence[int]): (C, H, W) of the image that MACs are for.
        calibration (Calibration): Images and options.
        profiles (Mapping[str, SiteProfile]): Profiles by site; none after a search.
    """
    dense, slim = networks
    settings = calibration.settings
    structure.macs = dict(dense=macs.dense, subnet=macs(structure.sizes()),
                          input_shape=list(shape))
    if hasattr(slim, 'data_preprocessor'):  # otherwise only `forward` knows how to run it
        note_backbone_macs(structure, slim, settings.part)
    structure.params = dict(dense=count_params(dense), subnet=count_params(slim))
    compare = partial(agreement, dense, slim, forward=calibration.forward, size=calibration.size)
    agreed = compare(calibration.held_out, logits=settings.logits, seen=calibration.seen)
    if calibration.seen < agreed['images']:  # and on images that the refits had
        some = first_images(calibration.batches, agreed['images'])
        agreed['refit_error'] = compare(some)['error']
    return CompressResult(slim, structure, dict(profiles), agreed)


def _check_profiles(profiles: Mapping[str, SiteProfile], space: SearchSpace) -> None:
    """Refuse profiles of sites with other names or other numbers of units."""
    wanted = {name: site.total for name, site in space.sites.items()}
    units = {name: len(profile.losses) - 1 for name, profile in profiles.items()}
    other = [name for name in {**wanted, **units} if wanted.get(name) != units.get(name)]
    if other:
        raise ValueError(f'expected profiles of the sites of this network, found `{other[0]}` with '
                         f'{units.get(other[0], "no")} units for {wanted.get(other[0], "none")}')


def _structure_of(space: SearchSpace, profiles: Mapping[str, SiteProfile],
                  sizes: Mapping[str, int], settings: CompressOptions) -> Structure:
    """A structure that keeps the first units of every site's order, as many as its size.

    Its provenance records the options, and sites and layers that are told apart in the report.
    """
    structure = space.structure_for(
        {name: profiles[name].order[:size].sort().values for name, size in sizes.items()})
    structure.method = f'compress:{structure.method}' if structure.method else 'compress'
    # units of these sites are channels of bases that the file does not have
    structure.provenance['rotated'] = [
        name for name, site in space.sites.items()
        if sizes[name] < site.total and profiles[name].rotated]
    if unread := [name for name in space.sites if profiles[name].unread]:
        structure.provenance['unread'] = unread
    if settings.sites is None and (dense := space.find_dense_attention()):
        structure.provenance['dense_attention'] = dense
    structure.provenance.update(target=str(settings.target), asked=_asked(settings))
    return structure


def call_network(network: nn.Module, batch: Any) -> Any:
    """Call a network with a batch; images come in the type and to the device of its weights."""
    if isinstance(batch, Tensor) and batch.is_floating_point():
        batch = batch.to(next(network.parameters()))
    return network(batch)


def macs_model(model: nn.Module, space: SearchSpace, input_shape: Sequence[int],
               part: str | None) -> MacsModel:
    """MACs of a model, or of the part that a budget counts, as a function of its sites' sizes.

    Args:
        model (nn.Module): The dense network.
        space (SearchSpace): The model's sites.
        input_shape (Sequence[int]): (C, H, W) of the image that MACs are for.
        part (str, optional): Part of a task model to count, ``'model'`` or ``'backbone'``; of None
            the default part of its task.
    """
    task = hasattr(model, 'data_preprocessor')
    counted = part_to_count(model, part) if task else model
    return MacsModel(counted, space.host, space.sites, task_forward(counted, input_shape))


def refit_structure(model: nn.Module,
                    structure: str | Path | Structure,
                    images: Tensor | Sequence[Any],
                    options: CompressOptions,
                    forward: Forward | None = None,
                    held_out: Tensor | Sequence[Any] | None = None,
                    done: CompressProgress | None = None) -> CompressResult:
    """Cut a dense network to a structure and refit the readers of the kept units.

    So the retraining of a searched structure starts from the dense network's weights, not from
    weights that were trained together with gates. Masks on queries and keys (DCS) are layers that
    the dense network does not have: they start as they were initialised. The result has no
    profiles.

    Args:
        model (nn.Module): Dense model, see :func:`compress`. It is not changed.
        structure (str | Path | Structure): Structure of this backbone. Channels of heads are the
            network's own, not channels of rotated bases.
        images (Tensor | Sequence): Calibration images (N, 3, H, W), or batches for ``forward``.
        options (CompressOptions): All options but the sizes: the structure gives them.
        forward (Callable, optional): Takes a model and a batch; returns the outputs that are to
            agree. Defaults to None: the model is called with the batch.
        held_out (Tensor | Sequence, optional): Images that agreement is measured on. Defaults to
            None: the last tenth of ``images``.
        done (CompressProgress, optional): Progress of an interrupted call. Defaults to None.

    Raises:
        ValueError: As in ``compress``; or a structure of another backbone, with other MACs or
            parameters than it records, with a kind of site that has no closed form, or one of
            ``compress`` that keeps channels of rotated bases.
    """
    wanted = Structure.load(structure)
    calibration = prepare_calibration(
        model, images, held_out, forward or call_network, done, options)
    look_at(calibration)
    networks = Pair(calibration.dense, copy.deepcopy(calibration.dense))
    kinds, masks = _kinds(wanted)
    with torch.random.fork_rng(devices=[]):  # a repeated call begins with equal masks
        torch.manual_seed(calibration.settings.seed)
        space = open_search_space(networks.slim, kinds, masks=masks)
    check_ties(networks.slim, space.sites)
    open_search_space(networks.dense, kinds)
    wanted.validate(space.totals())
    if rotated := wanted.provenance.get('rotated'):
        raise ValueError('expected a structure of a search, found one of `compress` in which units '
                         f'of `{rotated[0]}` are channels of a rotated basis, which the file does '
                         'not have: compress again with the same target')
    shape, origin = calibration.find_input_shape()
    macs = macs_model(networks.slim, space, shape, calibration.settings.part)
    # described anew, as the given structure may name another class for this backbone
    described = space.structure_for({name: torch.tensor(site.kept)
                                     for name, site in wanted.sites.items()})
    described.method = wanted.method
    sliced = search_space(copy.deepcopy(networks.slim))
    sliced.slice_to(described)
    check_recorded(sliced.host, wanted)  # before the images are run
    refit_along(networks, described, calibration)
    described.provenance.update(dict(input_shape=origin) if origin else {})
    return make_result(networks, described, macs, shape, calibration, {})


def _kinds(structure: Structure) -> tuple[list[KindConfig], list[KindConfig]]:
    """Kinds of site that are refitted, and masks on queries and keys, whose weights begin anew."""
    kinds = structure.backbone.get('sites')
    if not kinds:
        # a structure of a named backbone lists none, but its sites' names end with the kinds
        kinds = list(dict.fromkeys(name.rpartition('.')[2] for name in structure.sites))
        from mmkcr.registry import MODELS  # imports MMEngine, which `compress` does without
        named = MODELS.get(structure.backbone['type'])
        if hasattr(named, 'masks_of'):
            kinds += named.masks_of(structure.backbone)
    masks = [kind for kind in kinds if kind_name(kind) == QKMaskSite.kind]
    return [kind for kind in kinds if kind not in masks], masks

"""Closed-form slimming: any checkpoint, minutes, no labels (SPEC 9).

1. One pass over calibration images through the dense network gives, for every site, the order in
   which its units matter and what the network's outputs lose with any number of them.
2. A budget is shared out among the sites so that the sum of these losses is least.
3. Site after site is sliced, and the layers that read the kept units are refitted to give what
   the dense network's gave, from the inputs that the compressed network has by then.
"""

import copy
import dataclasses
import math
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from mmkcr.core import LatencyModel, LatencyTable, MacsModel, Structure, count_params, parse_target
from mmkcr.core.allocation import Curve, allocate
from mmkcr.core.budget import allowed_sizes
from mmkcr.core.latency import useful_sizes
from mmkcr.evaluation.complexity import ComplexityTap
from mmkcr.functional.moments import Moments
from mmkcr.functional.refit import refit_output
from mmkcr.models.calibration import (
    Forward,
    ResumableForward,
    added_last,
    block_of,
    block_rows,
    caught,
    collect,
    flat_tensors,
    input_rows,
    output_rows,
    pick,
    readers,
    rows_in,
    rows_of_a_batch,
    rows_out,
    set_weights,
    taps,
    weight_matrix,
)
from mmkcr.models.head_rotation import take_weights
from mmkcr.models.searchable import SearchSpace
from mmkcr.models.sites import find_sites, why_not
from mmkcr.models.sites.base import HostSite, KindConfig
from mmkcr.models.utils import counted_part, is_detector, search_space, task_forward
from mmkcr.models.whole import HeldBatches, whole_outputs
from .compress_progress import CompressProgress
from .site_profiles import CompressOptions, SiteProfile, profile_sites, shown
from .slim import note_backbone_macs

#: Kinds whose units can be chosen and refitted.
REFITTED = ('mlp_hidden', 'heads', 'head_channels', 'attention_outputs', 'channels', 'mlp_channels')
#: Those that a call takes by default: they need no gather and lose least at the same MACs. Whole
#: heads are taken where their channels cannot be.
DEFAULT_SITES = ('mlp_hidden', 'head_channels', 'heads', 'attention_outputs', 'channels')
#: What may be made smaller: the backbone, or the whole model with its neck and heads.
SCOPES = ('backbone', 'model')


#: Share of a budget that an allocation uses at least where the sites' sizes allow it.
FILLED = 0.97


@dataclasses.dataclass
class CompressResult:
    """What :func:`compress` gives.

    Args:
        model (nn.Module): The subnet: a copy of the model that was given.
        structure (Structure): What it keeps.
        profiles (dict[str, SiteProfile]): By site; another budget needs no new pass.
        agreement (dict[str, float]): Of dense and slim outputs on held-out images: ``error``,
            relative, and for class scores the share with the same ``top1``.
        complexity (dict[str, dict[str, float]]): ``kc`` and ``a_kc`` of the features of the
            backbone, ``dense`` and ``slim``, on the same images; empty where these are no maps.
    """

    model: nn.Module
    structure: Structure
    profiles: Dict[str, SiteProfile]
    agreement: Dict[str, float]
    complexity: Dict[str, Dict[str, float]]


def compress(model: nn.Module,
             images: Union[Tensor, Sequence[Any]],
             target: Union[str, int, float],
             sites: Optional[Sequence[KindConfig]] = None,
             input_shape: Sequence[int] = (3, 224, 224),
             part: Optional[str] = None,
             forward: Optional[Forward] = None,
             held_out: Union[Tensor, Sequence[Any], None] = None,
             profiles: Optional[Mapping[str, SiteProfile]] = None,
             done: Optional[CompressProgress] = None,
             latency: Optional[LatencyTable] = None,
             scope: str = 'backbone',
             **options: Any) -> CompressResult:
    """Make a network smaller in closed form, from unlabelled images.

    Args:
        model (nn.Module): Dense: any module with an adapter, or a task model of mmpretrain, mmdet
            or mmseg whose backbone has one. It is left as it is.
        images (Tensor | Sequence): Calibration images (N, 3, H, W), or batches for ``forward``.
        target (str | int | float): Most MACs, as of :func:`~mmkcr.core.parse_target`.
        sites (Sequence[str | dict], optional): Kinds of site. Defaults to None: those of
            :data:`DEFAULT_SITES` that the backbone has.
        input_shape (Sequence[int]): (C, H, W) of the image that MACs are counted for. Defaults to
            (3, 224, 224).
        part (str, optional): ``'model'`` or ``'backbone'``, see
            :func:`~mmkcr.models.utils.counted_part`.
        forward (Callable, optional): Takes a model and a batch of ``images``; gives the outputs
            that are to agree. Defaults to calling the model.
        held_out (Tensor | Sequence, optional): Images that agreement is measured on. Defaults to
            None: the last tenth of ``images``, which calibration then does not see.
        profiles (Mapping[str, SiteProfile], optional): Of an earlier call with these images and
            sites. Defaults to None: they are made.
        done (CompressProgress, optional): What an earlier call with these arguments had done; what
            this one does is written there. Defaults to None.
        latency (LatencyTable, optional): Measured on this network; ``target`` is then a time, see
            :meth:`~mmkcr.core.LatencyModel.parse_target`. Defaults to None: MACs.
        scope (str): ``'backbone'``, or ``'model'``: neck and heads are made smaller too, under one
            budget over all MACs. ``images`` are then batches of the data preprocessor, and
            ``forward`` is :func:`~mmkcr.models.whole.whole_outputs`. Defaults to ``'backbone'``.
        **options: See :class:`CompressOptions`.

    Returns:
        CompressResult: Subnet and structure.

    Raises:
        ValueError: No images, a model without an adapter or with gates, a target out of reach (the
            message gives the range), or activations that are not finite. Nothing is changed then.

    Example:
        >>> model = timm.create_model('vit_small_patch16_224', pretrained=True)
        >>> result = compress(model, images, '60%')
        >>> result.model(images)
    """
    settings = CompressOptions(**options)
    if settings.refit not in ('least-squares', 'mean', 'none'):
        raise ValueError("expected `refit` 'least-squares', 'mean' or 'none', found "
                         f'{settings.refit!r}')
    if scope not in SCOPES:
        raise ValueError(f'expected `scope` of {list(SCOPES)}, found {scope!r}')
    if scope == 'model' and latency is not None:
        raise ValueError('expected a target of MACs to compress a whole model, found a time: '
                         'tables of latencies are about backbones')
    forward = forward or (whole_outputs if scope == 'model' else called)
    batches, held_out = split_batches(images, held_out)
    dense = copy.deepcopy(model)
    dense.eval()
    if scope == 'model' and is_detector(dense):
        chooser = copy.deepcopy(dense)
        batches, held_out = (HeldBatches(one, chooser) for one in (batches, held_out))
    subnet = copy.deepcopy(dense)
    space = searched(subnet, sites, scope)
    whole = searched(dense, sites, scope)
    macs = macs_model(subnet, space, input_shape, part)
    cost = macs if latency is None else LatencyModel(macs, latency)
    wanted = parse_target(target, macs.dense) if cost is macs else cost.parse_target(target)
    check_reach(space, cost, wanted, settings)
    profiles = profiles or (done.profiles() if done else None)
    if profiles is None:
        profiles = profile_sites(dense, whole, batches, forward, settings)
        if done is not None:
            done.save_profiles(profiles)
    for profile in profiles.values():
        for backbone in (whole.host, space.host):
            take_weights(backbone, profile.rotated)
    sizes = share_out(space, profiles, cost, wanted, settings)
    structure = space.structure_for(
        {name: profiles[name].order.order[:size].sort().values for name, size in sizes.items()})
    structure.method = f'compress:{structure.method}' if structure.method else 'compress'
    params = count_params(dense)
    refit_along(dense, subnet, structure, batches, forward, settings, done)
    structure.macs = dict(dense=macs.dense, subnet=macs(sizes), input_shape=list(input_shape))
    if hasattr(subnet, 'data_preprocessor'):  # else `forward` alone knows how to run it
        note_backbone_macs(structure, subnet, part)
    structure.params = dict(dense=params, subnet=count_params(subnet))
    if cost is not macs:
        structure.provenance['latency'] = cost.describe(sizes)
    features = [getattr(own.host, 'backbone', own.host) for own in (whole, space)]
    with ComplexityTap(features[0]) as of_dense, ComplexityTap(features[1]) as of_slim:
        found = agreement(dense, subnet, held_out, forward, settings.logits)
    return CompressResult(subnet, structure, dict(profiles), found,
                          dict(dense=of_dense.values(), slim=of_slim.values()))


def called(network: nn.Module, batch: Any) -> Any:
    """Outputs of a network that is called with a batch."""
    return network(batch)


def split_batches(images: Any, held_out: Any) -> Tuple[Sequence[Any], Sequence[Any]]:
    """Batches to calibrate on, and others."""
    def split(given: Any) -> Sequence[Any]:
        return given.split(16) if isinstance(given, Tensor) and len(given) else given

    batches = split(images)
    if not len(batches):
        raise ValueError('expected at least one calibration image, found none')
    if held_out is not None:
        return batches, split(held_out)
    if len(batches) < 2:
        return batches, batches
    count = max(1, len(batches) // 10)
    return batches[:-count], batches[-count:]


def searched(model: nn.Module, sites: Optional[Sequence[KindConfig]] = None,
             scope: str = 'backbone') -> SearchSpace:
    """The search space of a model's backbone or of the whole model, made where it has none.

    Args:
        model (nn.Module): Changed in place: its backbone, or it, gets the attribute
            ``search_space``.
        sites (Sequence[str | dict], optional): Kinds of site. Defaults to None: see
            :func:`default_kinds`.
        scope (str): One of :data:`SCOPES`. Defaults to ``'backbone'``.

    Raises:
        ValueError: A backbone without an adapter, or one that is not dense.
    """
    backbone = getattr(model, 'backbone', model)
    backbone = backbone if isinstance(backbone, nn.Module) else model
    host = backbone if scope == 'backbone' else model
    for known in (getattr(part, 'search_space', None) for part in (host, backbone)):
        if known is not None and known.state_name() != 'dense':
            raise ValueError(f'expected a dense model to compress, found a {known.state_name()}')
    check_kinds(sites or ())
    kinds = sites or default_kinds(host)
    if scope == 'model':
        _check_parts(model, kinds)
    if not kinds:
        reasons = '; '.join(f'`{kind}`: {why_not(host, kind)}' for kind in REFITTED)
        raise ValueError(f'expected a backbone with a kind of site of {list(REFITTED)}, found '
                         f'`{type(host).__name__}` ({reasons})')
    return SearchSpace.of_dense(host, kinds)


def _check_parts(model: nn.Module, kinds: Sequence[KindConfig]) -> None:
    """Refuse a whole model none of whose necks and heads has an adapter.

    Raises:
        ValueError: All sites are the backbone's.
    """
    sites = find_sites(model, kinds) if kinds else {}
    if not all(site.path.startswith('backbone.') for site in sites.values()) or not sites:
        return
    parts = sorted({type(child).__name__ for name, child in model.named_children()
                    if name not in ('backbone', 'data_preprocessor') and count_params(child)})
    reason = why_not(model, 'channels')
    raise ValueError('expected a neck or head with an adapter (`UPerHead`, `SegformerHead`, `FPN` '
                     'or `PAFPN` with `RPNHead`, `ConvFCBBoxHead` and `FCNMaskHead`, transformers '
                     "of mmcv's layers) to compress a whole model, found "
                     f'{", ".join(f"`{part}`" for part in parts)} ({reason})')


def check_kinds(sites: Sequence[KindConfig]) -> None:
    """Refuse kinds of site that cannot be refitted.

    Args:
        sites (Sequence[str | dict]): Kinds of site.

    Raises:
        ValueError: One has no closed form.
    """
    unknown = sorted({_name(kind) for kind in sites} - set(REFITTED))
    if unknown:
        raise ValueError(f'expected kinds of site that have a closed form, of {list(REFITTED)}, '
                         f'found {unknown}')


def default_kinds(host: nn.Module) -> List[KindConfig]:
    """The kinds of :data:`DEFAULT_SITES` that a host has; no two along the same axes.

    Of a whole model whole heads are taken in those parts where heads cannot become narrower.
    """
    kinds: List[KindConfig] = [kind for kind in DEFAULT_SITES if not why_not(host, kind)]
    if 'heads' not in kinds or 'head_channels' not in kinds:
        return kinds
    if not isinstance(getattr(host, 'backbone', None), nn.Module):
        return [kind for kind in kinds if kind != 'heads']
    parts = [{site.path.partition('.')[0] for site in find_sites(host, [kind]).values()}
             for kind in ('heads', 'head_channels')]
    alone = sorted(parts[0] - parts[1])
    place = kinds.index('heads')
    only = [dict(kind='heads', where=rf'^({"|".join(alone)})\.')] if alone else []
    kinds[place:place + 1] = only
    return kinds


def _name(kind: KindConfig) -> str:
    return kind if isinstance(kind, str) else kind['kind']


def macs_model(model: nn.Module, space: SearchSpace, input_shape: Sequence[int],
               part: Optional[str]) -> MacsModel:
    """MACs of a model, or of the part that a budget is about, from the sizes of its sites."""
    counted = counted_part(model, part) if hasattr(model, 'data_preprocessor') else model
    return MacsModel(counted, space.host, space.sites, task_forward(counted, input_shape))


def size_options(site: HostSite, settings: CompressOptions) -> List[int]:
    """Sizes that a site may have, ascending; of channels of heads equally many of every head."""
    total = site.total // site.rows
    divisor = settings.divisor if total >= 4 * settings.divisor else 1
    sizes = allowed_sizes(total, max(1, round(settings.min_share * total)), divisor)
    return [size * site.rows for size in sizes]


def check_reach(space: SearchSpace, macs: Union[MacsModel, LatencyModel], target: int,
                settings: CompressOptions) -> None:
    """Refuse a target that no sizes of the sites meet.

    Args:
        space (SearchSpace): Of the dense backbone.
        macs (MacsModel | LatencyModel): Of the sites' sizes.
        target (int): Most MACs, or nanoseconds.
        settings (CompressOptions): Sizes on offer.

    Raises:
        ValueError: The target is out of reach; the message gives the range.
    """
    least = {name: size_options(site, settings)[0] for name, site in space.sites.items()}
    if isinstance(macs, LatencyModel):
        macs.check_target(target, least)
    elif not macs(least) <= target:
        raise ValueError(f'expected a target within the reachable {macs(least) / 1e9:.6g}G to '
                         f'{macs.dense / 1e9:.6g}G MACs, found {target / 1e9:.6g}G')


def share_out(space: SearchSpace, profiles: Mapping[str, SiteProfile],
              macs: Union[MacsModel, LatencyModel], target: int,
              settings: CompressOptions) -> Dict[str, int]:
    """Sizes of all sites with the least sum of losses within the budget.

    Costs of a site are taken at the other sites' sizes of the round before, until nothing changes:
    they depend on each other where sites meet in one product.

    Args:
        space (SearchSpace): Of the dense backbone.
        profiles (Mapping[str, SiteProfile]): By site.
        macs (MacsModel | LatencyModel): Of the sites' sizes.
        target (int): Most MACs, or nanoseconds.
        settings (CompressOptions): Sizes on offer, and whether to share out at all.

    Returns:
        dict[str, int]: By site.

    Raises:
        ValueError: The target is out of reach; the message gives the range.
    """
    check_reach(space, macs, target, settings)
    offered = {name: size_options(site, settings) for name, site in space.sites.items()}
    sizes = {name: site.total for name, site in space.sites.items()}
    if settings.uniform:
        return uniform_sizes(offered, macs, target)
    losses = {name: profiles[name].losses for name in offered}
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
        lost = sum(float(losses[name][size]) for name, size in chosen.items())
        if lost >= least and chosen == sizes:
            break
        if lost < least:
            best, least = chosen, lost
        sizes = chosen
    return best


def fitted_sizes(sizes: Mapping[str, int], offered: Mapping[str, List[int]],
                 losses: Mapping[str, Tensor], macs: Union[MacsModel, LatencyModel],
                 target: int) -> Dict[str, int]:
    """Sizes within the budget that use it: costs that depend on each other miss it.

    Sites shrink, the one that loses least for what it saves first, until the budget is met; then
    they grow, the one that gains most for what it costs first, while there is room. Where steps
    are too coarse for the rest of the budget, one site makes room for others.

    Args:
        sizes (Mapping[str, int]): To start from, by site.
        offered (Mapping[str, list[int]]): Sizes that a site may have, ascending.
        losses (Mapping[str, Tensor]): Of a site with k units, k = 0 … total.
        macs (MacsModel | LatencyModel): Of the sites' sizes.
        target (int): Most MACs, or nanoseconds.
    """
    def lost(sizes: Mapping[str, int]) -> float:
        return sum(float(losses[name][size]) for name, size in sizes.items())

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
        sizes = min(fuller, key=lambda other: (macs(other) < FILLED * target, lost(other)))
    return sizes


def uniform_sizes(offered: Mapping[str, List[int]], macs: MacsModel, target: int) -> Dict[str, int]:
    """The largest common share of all sites within the budget."""
    def at(share: float) -> Dict[str, int]:
        return {name: max([size for size in options if size <= share * options[-1] + 1e-9]
                          or options[:1]) for name, options in offered.items()}

    low, high = 0., 1.
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if macs(at(middle)) <= target else (low, middle)
    return at(1.) if macs(at(1.)) <= target else at(low)


def refit_along(dense: nn.Module, subnet: nn.Module, structure: Structure, batches: Sequence[Any],
                forward: Forward, settings: CompressOptions,
                done: Optional[CompressProgress]) -> None:
    """Slice site after site, and refit the readers to the dense network's outputs.

    A site sees the inputs that the compressed network has by then, so errors do not pile up
    unseen. Both networks run from the block on that is at work.
    """
    space, whole = search_space(subnet), search_space(dense)
    names = [name for name, site in space.sites.items()
             if len(structure.sites[name].kept) < site.total]
    blocks: Dict[str, List[str]] = {}
    for name in names:
        blocks.setdefault(block_of(space.sites[name].path), []).append(name)
    batches = _enough(dense, whole, structure, batches, forward, settings)
    runs = [ResumableForward(model, own.host, batches, forward)
            for model, own in ((dense, whole), (subnet, space))]
    refits, last = settings.refit != 'none', None
    outputs: Dict[str, Tensor] = {}  # of the dense layers' that are left
    try:
        for block in shown(list(blocks), 'Refit of blocks', settings):
            sites = [space.sites[name] for name in blocks[block]]
            kept = {site: torch.tensor(structure.sites[name].kept, device=_device(site))
                    for name, site in zip(blocks[block], sites)}
            if refits and done is not None and done.has_block(block):
                for site in sites:
                    outputs.update(_outputs_left(site, kept[site]))
                    site.slice_to(kept[site])
                done.load_block(block, _refitted(sites))
                last = block
                continue
            if last is not None:
                for run in runs:
                    run.go_on(last, block)
                last = None
            for site in sites:
                outputs.update(_outputs_left(site, kept[site]))
                site.slice_to(kept[site])
                if refits:
                    together = [reader.path for reader in readers(site)]
                    # the inputs of lost outputs come from what was refitted
                    for paths in (together, *([path] for path in site.lost_outputs())):
                        _refit(runs, {path: outputs.get(path) for path in paths}, settings, block)
            if refits:
                last = block
                if done is not None:
                    done.save_block(block, _refitted(sites))
    finally:
        for run in runs:
            run.close()
    for name, site in space.sites.items():
        if name not in names:
            site.slice_to(torch.arange(site.total))
    space.structure = structure


def _device(site: HostSite) -> torch.device:
    return next(site.owner.parameters()).device


def _outputs_left(site: HostSite, kept: Tensor) -> Dict[str, Tensor]:
    """Which outputs of layers are left by a site that keeps some units, by path."""
    paths = {module: path for path, module in site.host.named_modules()}
    return {paths[axis.module]: axis.entries(kept) for axis in site.axes()
            if axis.name == 'weight' and axis.dim == 0 and
            isinstance(axis.module, (nn.Linear, nn.Conv2d))}


def _refitted(sites: Sequence[HostSite]) -> Dict[str, nn.Module]:
    """The layers with new weights, by path."""
    paths = [path for site in sites
             for path in (*(reader.path for reader in readers(site)), *site.lost_outputs())]
    return {path: sites[0].host.get_submodule(path) for path in paths}


def _enough(dense: nn.Module, space: SearchSpace, structure: Structure, batches: Sequence[Any],
            forward: Forward, settings: CompressOptions) -> Sequence[Any]:
    """As many batches as the refit with the most inputs needs."""
    needed = settings.least_batches
    found = collect(dense, batches[:1], forward, {
        reader.path: space.host.get_submodule(reader.path) for site in space.sites.values()
        for reader in readers(site)}, settings.rows)
    for name, site in space.sites.items():
        for reader in readers(site):
            units = len(structure.sites[name].kept) * reader.inner
            inputs = units * taps(space.host.get_submodule(reader.path))
            rows = max(1, found[reader.path].inputs.count)
            needed = max(needed, math.ceil(settings.per_unit[1] * inputs / rows))
    return batches[:needed]


def _refit(runs: Sequence[ResumableForward], layers: Mapping[str, Optional[Tensor]],
           settings: CompressOptions, block: Optional[str] = None) -> None:
    """New weights of some layers, by path, from one pass of the dense and the slim network.

    A layer shall give what the dense network's gives, of all outputs or of those that are left. One
    whose outputs are the last that is added to its block's shall bring the block's output to the
    dense network's: it also takes back what earlier blocks have lost.
    """
    old, new = ({path: run.host.get_submodule(path) for path in layers} for run in runs)
    scale = None
    if block is not None and len(layers) == 1 and settings.refit == 'least-squares':
        (path, layer), = old.items()
        scale = added_last(runs[0], block, layer)
        if scale is not None and layers[path] is not None:
            scale = scale[layers[path].to(scale.device)]
    moments = {path: Moments(*weight_matrix(layer).T.shape, name=path,
                             device=layer.weight.device) for path, layer in new.items()}
    generator = torch.Generator().manual_seed(settings.seed)
    for batch in range(len(runs[0].batches)):
        if batch >= settings.least_batches and all(
               found.count >= settings.per_unit[1] * found.num_features
               for found in moments.values()):
            break
        if scale is None:
            inputs, targets = _inputs_and_targets(runs, batch, old, new, layers)
        else:
            inputs, targets = _towards_the_block(runs, batch, block, new, layers, scale)
        for path in layers:
            rows, wanted = inputs[path], targets[path]
            inputs_of = moments[path].num_features
            chosen = pick(len(rows), rows_of_a_batch(
                settings.rows, inputs_of, settings.per_unit[1] * inputs_of,
                settings.least_batches), generator)
            if chosen is not None:
                rows, wanted = rows[chosen.to(rows.device)], wanted[chosen.to(rows.device)]
            moments[path].add(rows, wanted)
    for path, layer in new.items():
        before = weight_matrix(layer)
        if settings.refit == 'mean':
            weight = before.double()
            bias = moments[path].target_mean - weight @ moments[path].mean
        else:
            weight, bias = refit_output(moments[path], before, settings.rho,
                                        biased=layer.bias is not None)
        set_weights(layer, weight, bias)


Rows = Dict[str, Tensor]


def _inputs_and_targets(runs: Sequence[ResumableForward], batch: int,
                        old: Mapping[str, nn.Module],
                        new: Mapping[str, nn.Module],
                        left: Mapping[str, Optional[Tensor]]) -> Tuple[Rows, Rows]:
    """Inputs of the slim network's layers, and those of the dense outputs that are left."""
    targets = caught(runs[0], batch, old, list(old.values())[-1])
    inputs = caught(runs[1], batch, new, list(new.values())[-1])
    return ({path: rows_in(new[path], calls) for path, calls in inputs.items()},
            {path: _columns(rows_out(old[path], calls), left[path])
             for path, calls in targets.items()})


def _columns(rows: Tensor, kept: Optional[Tensor]) -> Tensor:
    return rows if kept is None else rows[:, kept.to(rows.device)]


def _towards_the_block(runs: Sequence[ResumableForward], batch: int, block: str,
                       new: Mapping[str, nn.Module], left: Mapping[str, Optional[Tensor]],
                       scale: Tensor) -> Tuple[Rows, Rows]:
    """The same for a layer that is added last; its targets mend the block's outputs."""
    (path, layer), = new.items()
    dense, slim = (run.host.get_submodule(block) for run in runs)
    outputs = runs[0].outputs(block)
    wanted = caught(runs[0], batch, {block: dense}, dense)[block][0][1] if outputs is None else \
        outputs[batch]
    wanted = block_rows(layer, wanted)
    found = caught(runs[1], batch, {block: slim, path: layer}, slim)
    (args, out), = found[path]
    missing = _columns(wanted - block_rows(layer, found[block][0][1]), left[path])
    return {path: input_rows(layer, args)}, {path: output_rows(layer, out) + missing / scale}


@torch.no_grad()
def agreement(dense: nn.Module, subnet: nn.Module, batches: Iterable[Any], forward: Forward,
              logits: bool = False) -> Dict[str, float]:
    """How far the outputs of two networks are apart.

    Args:
        dense (nn.Module): The one.
        subnet (nn.Module): The other.
        batches (Iterable): What ``forward`` takes.
        forward (Callable): See :func:`compress`.
        logits (bool): Whether outputs are class scores. Defaults to False.

    Returns:
        dict[str, float]: ``error``, the root of the squared difference over the outputs' squares;
        with ``logits`` also ``top1``, the share of images with the same first class.
    """
    lost = energy = same = total = 0.
    for batch in batches:
        ours, theirs = (flat_tensors(forward(model, batch)) for model in (subnet, dense))
        for a, b in zip(ours, theirs):
            lost += float((a - b).double().square().sum())
            energy += float(b.double().square().sum())
        if logits:
            same += float((ours[-1].argmax(-1) == theirs[-1].argmax(-1)).sum())
            total += len(ours[-1])
    found = dict(error=(lost / max(energy, 1e-30))**0.5)
    return dict(found, top1=same / max(total, 1)) if logits else found

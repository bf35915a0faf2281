"""Closed-form slimming: any checkpoint, minutes, no labels (SPEC 9).

1. One pass of calibration images through the dense network gives, for every site, an order of its
   units by importance, and the loss of the network's outputs at every number of units.
2. A budget is shared out among the sites so that the sum of these losses is minimal.
3. Site after site is sliced. The layers that read the kept units are refitted to reproduce the
   dense network's outputs from the inputs that they get in the network compressed so far.
"""

import copy
import dataclasses
import functools
import math
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from mmkcr.core import LatencyTable, MacsModel, Structure, count_params
from mmkcr.core.machine import free_memory
from mmkcr.evaluation.complexity import ComplexityTap
from mmkcr.models.batches import numbered, of_size, single_images
from mmkcr.models.calibration import Forward, flat_tensors
from mmkcr.models.costs import cost_model
from mmkcr.models.head_rotation import take_weights
from mmkcr.models.kernel_fit import FITTED
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites import find_sites, why_not
from mmkcr.models.sites.base import KindConfig
from mmkcr.models.survey import Survey, survey
from mmkcr.models.utils import counted_part, is_detector, kept_randomness, task_forward
from mmkcr.models.whole import HeldBatches, whole_outputs
from .compress_progress import CompressProgress
from .count import count_parts, note_backbone_macs
from .refit_blocks import refit_along
from .share_out import check_reach, share_out
from .site_profiles import REFITS, CompressOptions, SiteProfile, profile_sites

#: Kinds whose units can be chosen and refitted.
REFITTED = ('mlp_hidden', 'heads', 'head_channels', 'attention_outputs', 'channels', 'mlp_channels',
            'head_operator')
#: Default kinds of a call: they need no gather and lose least at the same MACs. Whole
#: heads are used where their channels cannot be selected.
DEFAULT_SITES = ('mlp_hidden', 'head_channels', 'heads', 'attention_outputs', 'channels')
#: Families named to whoever has a backbone without sites: those of the hosts and timm, of which
#: others have adapters too, and all of ``transformers``.
FAMILIES = ('ViT', 'Swin', 'PVT v2', 'MiT', 'ConvNeXt', 'LeViT', 'BEiT', 'EVA-02', 'DINOv2')
HF_FAMILIES = ('ViT', 'DINOv2', 'DINOv3', 'SigLIP', 'CLIP', 'FLAVA')
#: The part that is compressed: the backbone, or the whole model with its neck and heads.
SCOPES = ('backbone', 'model')


@dataclasses.dataclass
class CompressResult:
    """Result of :func:`compress`.

    Args:
        model (nn.Module): The subnet, a copy of the given model.
        structure (Structure): The kept units.
        profiles (dict[str, SiteProfile]): By site; another budget needs no new pass.
        agreement (dict[str, float]): Agreement of dense and slim outputs on held-out images:
            relative ``error``, and for class scores the share with the same ``top1``.
        complexity (dict[str, dict[str, float]]): ``kc`` and ``a_kc`` of the backbone's features,
            ``dense`` and ``slim``, on the same images; empty if these are no maps.
    """

    model: nn.Module
    structure: Structure
    profiles: Dict[str, SiteProfile]
    agreement: Dict[str, float]
    complexity: Dict[str, Dict[str, float]]


@torch.inference_mode(False)  # losses of units need gradients, wherever it is called
@kept_randomness()  # layers that are made for the subnet draw weights
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
             cost: str = 'macs',
             **options: Any) -> CompressResult:
    """Compress a network in closed form, from unlabelled images.

    Args:
        model (nn.Module): Dense model: any module with an adapter, or a task model of mmpretrain,
            mmdet or mmseg whose backbone has one. It is not changed.
        images (Tensor | Sequence): Calibration images (N, 3, H, W), or batches for ``forward``.
        target (str | int | float): Maximum MACs, see :func:`~mmkcr.core.parse_target`, or maximum
            of another ``cost``.
        sites (Sequence[str | dict], optional): Kinds of site. Defaults to None: those of
            :data:`DEFAULT_SITES` that the backbone has.
        input_shape (Sequence[int]): (C, H, W) of the image that MACs are counted for. Defaults to
            (3, 224, 224).
        part (str, optional): ``'model'`` or ``'backbone'``, see
            :func:`~mmkcr.models.utils.counted_part`.
        forward (Callable, optional): Takes a model and a batch of ``images``; returns the outputs
            that are to agree. Defaults to calling the model. MACs are counted by calling the model
            with an image in any case.
        held_out (Tensor | Sequence, optional): Images that agreement is measured on. Defaults to
            None: the last tenth of ``images``, which calibration then does not see (but of a
            single image or batch, the same).
        profiles (Mapping[str, SiteProfile], optional): Profiles of an earlier call with these
            images and sites. Defaults to None: they are computed.
        done (CompressProgress, optional): Progress of an interrupted call with these arguments;
            this call continues and extends it. Defaults to None.
        latency (LatencyTable, optional): Measured on this network; ``target`` is then a time, see
            :meth:`~mmkcr.core.LatencyModel.read_target`. Defaults to None.
        scope (str): ``'backbone'``, or ``'model'``: neck and heads are compressed too, under one
            budget for everything. ``images`` are then batches of the data preprocessor, and
            ``forward`` is :func:`~mmkcr.models.whole.whole_outputs`. Defaults to ``'backbone'``.
        cost (str): What the target limits: ``'macs'``, ``'params'``, or the ``'bytes'`` of the
            ``state_dict`` (``'40MB'``). Defaults to ``'macs'``.
        **options: See :class:`CompressOptions`.

    Returns:
        CompressResult: Subnet and structure.

    Raises:
        ValueError: No images, a model without an adapter or with gates, an unreachable target (the
            message gives the range), or activations or outputs on held-out images that are not
            finite. Nothing is changed then.

    Examples:
        >>> model = timm.create_model('vit_small_patch16_224', pretrained=True)
        >>> result = compress(model, images, '60%')
        >>> result.model(images)
    """
    settings = _checked(CompressOptions(**options), scope, latency)
    forward = forward or (whole_outputs if scope == 'model' else called)
    settings = with_memory(settings, model)
    batches, held_out = split_batches(images, held_out)
    dense = copy.deepcopy(model)
    dense.eval()
    if scope == 'model' and is_detector(dense):
        # proposals follow the weights: outputs are compared on the dense network's proposals
        chooser = copy.deepcopy(dense)
        batches, held_out = (HeldBatches(one, chooser) for one in (batches, held_out))
    subnet = copy.deepcopy(dense)
    space = searched(subnet, sites, scope)
    whole = searched(dense, sites, scope)
    macs = macs_model(subnet, space, input_shape, part)
    budget = cost_model(cost, macs, latency)
    wanted = budget.parse_target(target)
    try:
        check_reach(space, budget, wanted, settings)
    except ValueError as error:
        raise ValueError(f'{error}{_parts_without_sites(dense, space, input_shape)}'
                         ) from None
    profiles = profiles or (done.profiles() if done else None)
    looked = survey(dense, batches, forward)
    if profiles is not None:
        _check_profiles(profiles, space)
    else:
        profiles = _profiled(dense, whole, batches, forward, settings, looked, done)
    # rotated heads: both networks compute the same as before, and units are now single channels
    for profile in profiles.values():
        for backbone in (whole.host, space.host):
            take_weights(backbone, profile.rotated)
    sizes = share_out(space, profiles, budget, wanted, settings)
    structure = _chosen(space, profiles, sizes)
    params = count_params(dense)
    if budget is not macs:  # before slicing, as sizes are counted on the dense sites
        structure.provenance[budget.name] = budget.describe(sizes)
    refit_along(dense, subnet, structure, batches, forward, settings, looked, done)
    structure.macs = dict(dense=macs.dense, subnet=macs(sizes), input_shape=list(input_shape))
    if hasattr(subnet, 'data_preprocessor'):  # otherwise only `forward` knows how to run it
        note_backbone_macs(structure, subnet, part)
    structure.params = dict(dense=params, subnet=count_params(subnet))
    features = [getattr(own.host, 'backbone', own.host) for own in (whole, space)]
    with ComplexityTap(features[0]) as of_dense, ComplexityTap(features[1]) as of_slim:
        found = agreement(dense, subnet, of_size(held_out, looked.batch(settings.memory)), forward,
                          settings.logits)
    return CompressResult(subnet, structure, dict(profiles), found,
                          dict(dense=of_dense.values(), slim=of_slim.values()))


def _check_profiles(profiles: Mapping[str, SiteProfile], space: SearchSpace) -> None:
    wanted = {name: site.total for name, site in space.sites.items()}
    found = {name: len(profile.losses) - 1 for name, profile in profiles.items()}
    other = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    if other:
        raise ValueError(f'expected profiles of the sites of this network, found `{other[0]}` with '
                         f'{found.get(other[0], "no")} units for {wanted.get(other[0], "none")}')


def _profiled(dense: nn.Module, space: SearchSpace, batches: Sequence[Any], forward: Forward,
              settings: CompressOptions, looked: Survey, done: Optional[CompressProgress]
              ) -> Dict[str, SiteProfile]:
    """Profiles of all sites, which are stored group by group."""
    if done is None:
        return profile_sites(dense, space, batches, forward, settings, looked)
    profiles = profile_sites(dense, space, batches, forward, settings, looked,
                             done.profiles(begun=True),
                             functools.partial(done.save_profiles, begun=True))
    done.save_profiles(profiles)
    return profiles


def _checked(settings: CompressOptions, scope: str,
             latency: Optional[LatencyTable]) -> CompressOptions:
    """The options, if they and the scope are known and go together."""
    if settings.refit not in REFITS:
        raise ValueError(f'expected `refit` of {list(REFITS)}, found {settings.refit!r}')
    if scope not in SCOPES:
        raise ValueError(f'expected `scope` of {list(SCOPES)}, found {scope!r}')
    if scope == 'model' and latency is not None:
        raise ValueError('expected another target to compress a whole model, found a time: '
                         'tables of latencies are about backbones')
    return settings


def _chosen(space: SearchSpace, profiles: Mapping[str, SiteProfile],
            sizes: Mapping[str, int]) -> Structure:
    """The first units of every site's order."""
    structure = space.structure_for(
        {name: profiles[name].order.order[:size].sort().values for name, size in sizes.items()})
    structure.method = f'compress:{structure.method}' if structure.method else 'compress'
    # units of these sites are channels of bases that the file does not have
    structure.provenance['rotated'] = [
        name for name, site in space.sites.items()
        if sizes[name] < site.total and profiles[name].rotated]
    return structure


def called(network: nn.Module, batch: Any) -> Any:
    """Call a network with a batch."""
    return network(batch)


def with_memory(settings: CompressOptions, model: nn.Module) -> CompressOptions:
    """The options with the memory that they leave open: half of what is free."""
    if settings.memory is not None:
        return settings
    return dataclasses.replace(settings, memory=free_memory(next(model.parameters()).device) // 2)


def split_batches(images: Any, held_out: Any) -> Tuple[Sequence[Any], Sequence[Any]]:
    """Split into calibration batches and held-out batches, of one image each where they can be."""
    for given in (images, *([] if held_out is None else [held_out])):
        # not arrays of numpy, whose first axis would be taken for batches
        if not isinstance(given, Tensor) and (
                isinstance(given, (str, bytes)) or hasattr(given, '__array__') or not all(
                    hasattr(given, name) for name in ('__len__', '__getitem__'))):
            raise ValueError('expected images as a tensor (N, 3, H, W) or as a list of batches, '
                             f'found a `{type(given).__name__}`')
        if isinstance(given, Tensor) and (given.ndim != 4 or not given.is_floating_point()):
            raise ValueError('expected images as a tensor (N, 3, H, W) of floating point, found '
                             f'{tuple(given.shape)} of {given.dtype}')
    batches = single_images(images)
    if not len(batches):
        raise ValueError('expected at least one calibration image, found none')
    if held_out is not None:
        if not len(held_out):
            raise ValueError('expected at least one held-out image, found none: leave `held_out` '
                             'out for a tenth of the images')
        return batches, single_images(held_out)
    if len(batches) < 2:
        return batches, batches
    # the last tenth
    count = max(1, len(batches) // 10)
    return batches[:-count], batches[-count:]


def searched(model: nn.Module, sites: Optional[Sequence[KindConfig]] = None,
             scope: str = 'backbone', masks: Sequence[KindConfig] = ()) -> SearchSpace:
    """The search space of a model's backbone or of the whole model, created if there is none.

    Args:
        model (nn.Module): Changed in place: its backbone, or the model itself, gets the attribute
            ``search_space``.
        sites (Sequence[str | dict], optional): Kinds of site. Defaults to None: see
            :func:`default_kinds`.
        scope (str): One of :data:`SCOPES`. Defaults to ``'backbone'``.
        masks (Sequence[str | dict]): Masks on queries and keys that are put on it, with their
            initial values. Defaults to none.

    Raises:
        ValueError: A backbone without an adapter, or one that is not dense.
    """
    backbone = getattr(model, 'backbone', model)
    backbone = backbone if isinstance(backbone, nn.Module) else model
    host = backbone if scope == 'backbone' else model
    # the model or its backbone may be searchable already
    for known in (getattr(part, 'search_space', None) for part in (model, host, backbone)):
        if known is not None and known.state_name() != 'dense':
            raise ValueError(f'expected a dense model to compress, found a {known.state_name()}')
    check_kinds(sites or ())
    kinds = sites or default_kinds(host)
    if scope == 'model':
        _check_parts(model, kinds)
    if not kinds:
        raise ValueError('expected a backbone with layers that can be compressed '
                         f'({", ".join(FAMILIES)} and others of mmpretrain, mmdet, mmseg and timm; '
                         f'{", ".join(HF_FAMILIES)} of transformers: docs/coverage.md), found '
                         f'`{type(host).__name__}`{_reasons(host)}')
    space = SearchSpace.of_dense(host, [*masks, *kinds])
    if masks:
        space.put_masks()
    return space


def _reasons(host: nn.Module) -> str:
    """Why a host has no site of the default kinds, each reason once."""
    kinds: Dict[str, List[str]] = {}
    for kind in REFITTED:
        kinds.setdefault(why_not(host, kind), []).append(f'`{kind}`')
    found = [f'{", ".join(names)}: {reason}' for reason, names in kinds.items()
             if reason and not reason.endswith(('has an adapter', 'has no adapter'))]
    return f' ({"; ".join(found)})' if found else ', whose layers have no adapter'


def _check_parts(model: nn.Module, kinds: Sequence[KindConfig]) -> None:
    """Refuse a whole model if none of its necks and heads has an adapter.

    Raises:
        ValueError: All sites are in the backbone.
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


def _parts_without_sites(model: nn.Module, space: SearchSpace, input_shape: Sequence[int]) -> str:
    """End of the message on an unreachable target: parts of a whole model that stay as they are.

    It is empty for a backbone, and if all parts have sites.
    """
    if not isinstance(getattr(space.host, 'backbone', None), nn.Module):
        return ''
    counts = count_parts(model, input_shape)
    kept = [f'`{name}`, {macs / sum(counts.values()):.0%} of the MACs'
            for name, macs in counts.items() if macs and not any(
                site.path.startswith(f'{name}.') for site in space.sites.values())]
    return '; nothing can be cut in ' + ', '.join(kept) if kept else ''


def check_kinds(sites: Sequence[KindConfig]) -> None:
    """Refuse kinds of site that cannot be refitted.

    Args:
        sites (Sequence[str | dict]): Kinds of site.

    Raises:
        ValueError: One has no closed form.
    """
    unknown = sorted({kind_name(kind) for kind in sites} - set(REFITTED))
    if unknown == ['embedding']:
        raise ValueError('expected kinds of site that are worth a closed form, found `embedding`: '
                         'the residual stream stays whole down to 30 % of the MACs, so its width '
                         'is for the search of Once for Both alone')
    if unknown:
        raise ValueError(f'expected kinds of site that have a closed form, of {list(REFITTED)}, '
                         f'found {unknown}')
    for kind in sites:
        operator = FITTED[0] if isinstance(kind, str) else kind.get('operator', FITTED[0])
        if operator not in FITTED:
            raise ValueError(f'expected an operator for heads that has a closed form, of '
                             f'{list(FITTED)}, found {operator!r}')


def default_kinds(host: nn.Module) -> List[KindConfig]:
    """The kinds of :data:`DEFAULT_SITES` that a host has, without two along the same axes.

    In a whole model, heads are removed as a whole only in parts where they cannot become narrower.
    """
    kinds: List[KindConfig] = [kind for kind in DEFAULT_SITES if not why_not(host, kind)]
    if 'heads' not in kinds or 'head_channels' not in kinds:
        return kinds
    if not isinstance(getattr(host, 'backbone', None), nn.Module):
        return [kind for kind in kinds if kind != 'heads']
    # top-level parts (backbone, neck, ...) with whole heads, and with narrower ones: both kinds may
    # not meet in one part, as they have the same axes
    parts = [{site.path.partition('.')[0] for site in find_sites(host, [kind]).values()}
             for kind in ('heads', 'head_channels')]
    alone = sorted(parts[0] - parts[1])
    place = kinds.index('heads')
    only = [dict(kind='heads', where=rf'^({"|".join(alone)})\.')] if alone else []
    kinds[place:place + 1] = only
    return kinds


def kind_name(kind: KindConfig) -> str:
    """Name of a kind of site, of its config or alone."""
    return kind if isinstance(kind, str) else kind['kind']


def macs_model(model: nn.Module, space: SearchSpace, input_shape: Sequence[int],
               part: Optional[str]) -> MacsModel:
    """MACs of a model, or of the part that a budget counts, as a function of its sites' sizes.

    Raises:
        ValueError: A module that does not take an image of this shape.
    """
    task = hasattr(model, 'data_preprocessor')
    counted = counted_part(model, part) if task else model
    return MacsModel(counted, space.host, space.sites, task_forward(counted, input_shape))


@torch.no_grad()
def agreement(dense: nn.Module, subnet: nn.Module, batches: Iterable[Any], forward: Forward,
              logits: bool = False) -> Dict[str, float]:
    """Distance between the outputs of two networks.

    Args:
        dense (nn.Module): The reference.
        subnet (nn.Module): The network to compare.
        batches (Iterable): What ``forward`` takes.
        forward (Callable): See :func:`compress`.
        logits (bool): Whether outputs are class scores. Defaults to False.

    Returns:
        dict[str, float]: ``error``, the root of the summed squared difference over the summed
        squares of the outputs; with ``logits`` also ``top1``, the share of images with the same
        first class.

    Raises:
        ValueError: Outputs are not finite.
    """
    lost = energy = same = total = 0.
    for batch, images in numbered(batches):
        # all outputs in one sum: large maps weigh more
        ours, theirs = (flat_tensors(forward(model, batch)) for model in (subnet, dense))
        for a, b in zip(ours, theirs):
            lost += _square(a - b)
            energy += _square(b)
        if not math.isfinite(lost + energy):
            raise ValueError('expected finite outputs of the '
                             f'{"compressed" if math.isfinite(energy) else "dense"} network on '
                             f'held-out images, found `nan` or `inf` in images {images.start + 1} '
                             f'to {images.stop} of these')
        if logits:
            same += float((ours[-1].argmax(-1) == theirs[-1].argmax(-1)).sum())
            total += len(ours[-1])
    found = dict(error=(lost / max(energy, 1e-30))**0.5)
    return dict(found, top1=same / max(total, 1)) if logits else found


def _square(values: Tensor) -> float:
    """The sum of the squares, without a copy in fp64."""
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))**2

"""The options of a compression, and the sites of a model that it cuts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from mmkcr.core import LatencyTable, count_params
from mmkcr.core.checks import did_you_mean
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites import find_sites, why_not
from mmkcr.models.sites.base import KindConfig, kind_name

#: Takes a model and a batch; returns outputs, tensors in nested tuples, lists or dicts.
Forward = Callable[[nn.Module, Any], Any]
#: Values of :attr:`CompressOptions.refit`.
REFITS = ('least-squares', 'none')
#: The part that is compressed: the backbone, or the whole model with its neck and heads.
SCOPES = ('backbone', 'model')
#: Values of :attr:`CompressOptions.compare`.
COMPARED = ('backbone', 'model')
#: Value of :attr:`CompressOptions.rho`: each layer chooses.
AUTO = 'auto'
#: The relative ridge where no image can be left out.
RHO = 1e-3


class Pair(NamedTuple):
    """Two counterparts, one of the dense network and one of the slim network."""

    dense: Any
    slim: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompressOptions:
    """Options of a compression, one record from the command line to the driver.

    ``compress`` takes every field by its name. Commands offer fields under these names, too, and
    their help is the text below.

    Args:
        target (str | int | float, optional): Most of the ``cost`` that the result may have:
            ``'60%'`` or 0.6 of the dense network's, or a number like ``'12.6G'``, see
            :func:`~mmkcr.core.parse_target`. Defaults to None: no budget, as a given structure
            lists the kept units.
        cost (str): Quantity that the target limits: ``'macs'``, ``'params'``, or the ``'bytes'`` of
            the ``state_dict`` (``'40MB'``). Defaults to ``'macs'``.
        latency (LatencyTable, optional): Measured on this network; ``target`` is then a time, see
            :meth:`~mmkcr.core.LatencyModel.read_target`. Defaults to None.
        sites (Sequence[str | dict], optional): Kinds of site, of ``mlp_hidden``, ``heads``,
            ``head_channels``, ``attention_outputs``, ``channels`` and ``mlp_channels``. Defaults
            to None: all kinds that the backbone has, but ``mlp_channels``; heads as a whole only
            where their channels cannot be chosen.
        scope (str): The part that is made smaller: the ``'backbone'``, or the whole ``'model'``,
            with neck and heads, under one target over all its MACs. Defaults to ``'backbone'``.
        compare (str): Outputs of a detector or segmentor that a cut backbone must keep: those of
            the ``'backbone'``, each by its size, or of the ``'model'``, which also takes the time
            of its heads: most of it at large sizes. Other networks, and whole ones, always keep
            those of the model. Defaults to ``'backbone'``.
        part (str, optional): The part that the target limits, ``'model'`` or ``'backbone'``.
            Defaults to None: the backbone of a detector, else the model; in ``mmkcr compress`` the
            backbone of a segmentor, too.
        input_shape (Sequence[int], optional): (C, H, W) of the image that MACs are for, and that
            exported files take. Defaults to None: the size of the images, of several sizes the
            largest; in commands the size of the config.
        divisor (int): Sizes of hidden layers, channels and channels of a head are multiples of it,
            or full. Where there are fewer than four multiples, a divisor above 8 is halved; else
            any size is allowed. Defaults to 8.
        min_share (float): Minimum share of its units that a site keeps. Defaults to 0.05.
        uniform (bool): One share for all sites, not the best allocation. Defaults to False.
        rho (str | float): Relative ridge of the refits. Defaults to ``'auto'``: each layer takes
            the ridge of 1e-3 to 3 that errs least on images its refit has not seen. With 1e6
            a refit is a shift of the bias to the means.
        order_rho (float): Relative ridge of orders and of heads' bases. Defaults to 1e-3.
        rows (int): Maximum number of an image's positions that enter the moments of a layer, see
            :class:`~mmkcr.closed_form.readers.Rows`. Defaults to 256.
        per_unit (tuple[int, int]): Positions per input of a layer that are enough, for its order
            and for its refit. Defaults to (4, 12).
        least_images (int): Images that are used, if there are as many, even where fewer have enough
            positions: neighbours within an image are much alike. Defaults to 2048: a DINOv2-S whose
            refit saw 2048 crops of photographs, not 256, is closer to the dense one on others.
        augment (bool): Where there are fewer images than that, add crops of them, half of them
            mirrored, until there are as many. Defaults to False.
        backward_images (int): Images that are also run backward in any case, for the orders.
            Defaults to 128: readers have fewer outputs than inputs, so fewer rows do.
        probe_images (int): Images on which the losses of some sizes are measured. With 0 losses
            come from moments alone, as if an image's positions were independent. Defaults to 64.
        logits (bool): Whether the model's output is class scores (B, C). Defaults to False.
        progress (bool): Show a progress bar. Defaults to True.
        refit (str): Way of the refit: ``'least-squares'``, or for controls ``'none'``. Defaults to
            ``'least-squares'``.
        seed (int): Seed of all random draws. Defaults to 0.
        memory (int, optional): Bytes (in commands GB) that may be taken beyond the networks
            themselves. Images of a batch and sites that are profiled together are as many as fit;
            one image at least. Defaults to None: half of the free memory of the model's device.

    Raises:
        ValueError: A value is outside its range, or two options contradict each other.
    """

    target: str | int | float | None = None
    cost: str = 'macs'
    latency: LatencyTable | None = None
    sites: Sequence[KindConfig] | None = None
    scope: str = 'backbone'
    compare: str = 'backbone'
    part: str | None = None
    input_shape: Sequence[int] | None = None
    divisor: int = 8
    min_share: float = 0.05
    uniform: bool = False
    rho: str | float = AUTO
    order_rho: float = 1e-3
    rows: int = 256
    per_unit: tuple[int, int] = (4, 12)
    least_images: int = 2048
    augment: bool = False
    backward_images: int = 128
    probe_images: int = 64
    logits: bool = False
    progress: bool = True
    refit: str = 'least-squares'
    seed: int = 0
    memory: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in (('refit', REFITS), ('scope', SCOPES), ('compare', COMPARED)):
            if getattr(self, name) not in allowed:
                raise ValueError(f'expected `{name}` of {list(allowed)}, found '
                                 f'{getattr(self, name)!r}')
        ranges = dict(rho=(0, 1e6), order_rho=(0, 1e6), min_share=(0, 1), divisor=(1, 2**20),
                      seed=(0, 2**63), memory=(0, 2**60))
        if self.rho == AUTO:
            del ranges['rho']
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and
                                          least <= value <= most):  # NaN is refused too
                raise ValueError(f'expected `{name}` within [{least}, {most:g}], found {value!r}')
        if self.scope == 'model' and self.part == 'backbone':
            raise ValueError("expected a budget over the whole model for the scope 'model', found "
                             "that of the part 'backbone'")
        if self.latency is not None:
            check_timed(self.scope)

    def compression(self) -> dict[str, Any]:
        """The fields of this class by name, without the fields of a subclass."""
        return {field.name: getattr(self, field.name)
                for field in dataclasses.fields(CompressOptions)}


#: Share of the memory for the statistics of the sites that are profiled together, and for the
#: changed weights that are tried on them.
STATISTICS = 3 / 8
#: Share of the memory for each kind of activations that a refit records of all images.
RECORDS = 1 / 8
#: Share of the memory for the activations of one batch.
ACTIVATIONS = 1 / 4


@dataclasses.dataclass
class SiteProfile:
    """Result of the calibration of one site.

    Args:
        order (Tensor): Units, the most important first, int64 (total,).
        losses (Tensor): Loss of the network's outputs with the first k units, k = 0 … total, fp64;
            relative to the outputs, or in nats for class scores.
        rotated (dict[str, Tensor]): Weights, by path in the host, that the units refer to if these
            are not the network's own: see :mod:`mmkcr.closed_form.heads`. Defaults to none.
        unread (bool): Whether no output depends on the units, which then stay. Defaults to False.
    """

    order: Tensor
    losses: Tensor
    rotated: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    unread: bool = False


#: Kinds whose units can be chosen and refitted.
REFITTED = ('mlp_hidden', 'heads', 'head_channels', 'attention_outputs', 'channels', 'mlp_channels')
#: Default kinds of a call: they need no gather and lose least at equal MACs. Whole
#: heads are used where their channels cannot be selected.
DEFAULT_SITES = ('mlp_hidden', 'head_channels', 'heads', 'attention_outputs', 'channels')
#: Kinds for searches alone, with the reason.
_SEARCHED = dict(
    embedding='the residual stream stays whole down to 30 % of the MACs, so its width is for the '
              'search of Once for Both alone',
    head_operator='narrower heads lose less at the same MACs (docs/real_network.md), so '
                  'convolutions in place of heads are for searches and scores alone')
#: Families that a message names beside a backbone without sites: some families of the hosts and
#: timm, and all families of ``transformers``.
FAMILIES = ('ViT', 'Swin', 'PVT v2', 'MiT', 'ConvNeXt', 'LeViT', 'BEiT', 'EVA-02', 'DINOv2')
HF_FAMILIES = ('ViT', 'DINOv2', 'DINOv3', 'SigLIP', 'CLIP', 'FLAVA', 'Swin', 'SegFormer',
               'BEiT', 'DepthAnything', 'DPT', 'ViTDet', 'ViTPose', 'SAM', 'DETR', 'RT-DETR',
               'MaskFormer', 'Mask2Former')


def open_search_space(model: nn.Module, sites: Sequence[KindConfig] | None = None,
                      scope: str = 'backbone', masks: Sequence[KindConfig] = ()) -> SearchSpace:
    """Create the search space of a model's backbone or of the whole model.

    The backbone, or in the scope ``'model'`` the model itself, gets the attribute ``search_space``.

    Args:
        model (nn.Module): Dense model; it is changed.
        sites (Sequence[str | dict], optional): Kinds of site. Defaults to None: the
            :func:`default_kinds`.
        scope (str): Part that gets the search space, of :data:`SCOPES`. Defaults to
            ``'backbone'``.
        masks (Sequence[str | dict]): Kinds of masks on queries and keys; masks are put on the
            layers as they begin. Defaults to none.

    Raises:
        ValueError: The model has no adapter, is not dense, or cannot be refitted at these sites.
    """
    backbone = getattr(model, 'backbone', model)
    backbone = backbone if isinstance(backbone, nn.Module) else model
    host = backbone if scope == 'backbone' else model
    # the model or its backbone may be searchable already
    for known in (getattr(part, 'search_space', None) for part in (model, host, backbone)):
        if known is not None and known.state_name() != 'dense':
            raise ValueError(f'expected a dense model to compress, found a {known.state_name()}: '
                             'give the dense checkpoint and a lower target')
    check_kinds(sites or ())
    kinds = sites or default_kinds(host)
    if scope == 'model':
        _check_parts(model, kinds, sites)
    if not kinds:
        raise ValueError('expected a backbone with layers that can be compressed '
                         f'({", ".join(FAMILIES)} and others of mmpretrain, mmdet, mmseg and timm; '
                         f'{", ".join(HF_FAMILIES)} of transformers: docs/coverage.md), found '
                         f'`{type(host).__name__}`{_reasons(host)}')
    space = SearchSpace(host, [*masks, *kinds])
    if masks:
        space.put_masks()
    return space


def _reasons(host: nn.Module) -> str:
    """Why a host has no site of the default kinds, each reason once."""
    kinds: dict[str, list[str]] = {}
    for kind in REFITTED:
        kinds.setdefault(why_not(host, kind), []).append(f'`{kind}`')
    clauses = [f'{", ".join(names)}: {reason}' for reason, names in kinds.items()
               if reason and not reason.endswith(('has an adapter', 'has no adapter'))]
    return f' ({"; ".join(clauses)})' if clauses else ', whose layers have no adapter'


def _check_parts(model: nn.Module, kinds: Sequence[KindConfig],
                 asked: Sequence[KindConfig] | None) -> None:
    """Refuse a whole model if none of its necks and heads has an adapter, or an asked kind of site.

    Args:
        model (nn.Module): The dense model.
        kinds (Sequence[str | dict]): Kinds of site that it gets.
        asked (Sequence[str | dict], optional): Kinds that a user asked for; None: the default ones.
    """
    if not _lie_in_backbone(model, kinds):
        return
    if asked and not _lie_in_backbone(model, default_kinds(model)):
        raise ValueError("expected a kind of site of a neck or head, too, for the scope 'model', "
                         f'found {", ".join(f"`{kind_name(kind)}`" for kind in asked)}, whose '
                         "sites are all in the backbone: give more kinds, or the scope 'backbone'")
    parts = sorted({type(child).__name__ for name, child in model.named_children()
                    if name not in ('backbone', 'data_preprocessor') and count_params(child)})
    reason = why_not(model, 'channels')
    raise ValueError('expected a neck or head with an adapter (`UPerHead`, `SegformerHead`, `FPN` '
                     'or `PAFPN` with `RPNHead`, `ConvFCBBoxHead` and `FCNMaskHead`, transformers '
                     "of mmcv's layers) to compress a whole model, found "
                     f'{", ".join(f"`{part}`" for part in parts)} ({reason})')


def _lie_in_backbone(model: nn.Module, kinds: Sequence[KindConfig]) -> bool:
    """Whether a whole model has sites of some kinds, in its backbone alone."""
    sites = find_sites(model, kinds) if kinds else {}
    return bool(sites) and all(site.path.startswith('backbone.') for site in sites.values())


def check_timed(scope: str) -> None:
    """Refuse a target of time in the scope of a whole model.

    Raises:
        ValueError: The scope is ``'model'``.
    """
    if scope == 'model':
        raise ValueError('expected another target to compress a whole model, found a time: '
                         'tables of latencies are about backbones')


def check_divisor(space: SearchSpace, divisor: int) -> None:
    """Refuse a divisor above the width of every site: a number of units may have been meant.

    Raises:
        ValueError: The divisor is above the width of the widest site.
    """
    widest = max((site.total // site.rows for site in space.sites.values()), default=divisor)
    if divisor > max(widest, CompressOptions.divisor):
        raise ValueError('expected a `divisor` of sizes, of at most the '
                         f'{widest} units of the widest site, found {divisor}')


def check_kinds(sites: Sequence[KindConfig]) -> None:
    """Refuse kinds of site that cannot be refitted.

    Raises:
        ValueError: A kind is unknown, or for searches alone.
    """
    unknown = sorted({kind_name(kind) for kind in sites} - set(REFITTED))
    for kind in unknown:
        if kind in _SEARCHED:
            raise ValueError('expected kinds of site that are worth a closed form, found '
                             f'`{kind}`: {_SEARCHED[kind]}')
    if unknown:
        raise ValueError(f'expected kinds of site that have a closed form, of {list(REFITTED)}, '
                         f'found {unknown}{did_you_mean(unknown[0], REFITTED)}')


def default_kinds(host: nn.Module) -> list[KindConfig]:
    """The kinds of :data:`DEFAULT_SITES` that a host has, without two kinds along one axis.

    In a whole model, heads are removed as a whole only in parts where they cannot become narrower.
    """
    kinds: list[KindConfig] = [kind for kind in DEFAULT_SITES if not why_not(host, kind)]
    if 'heads' not in kinds or 'head_channels' not in kinds:
        return kinds
    if not isinstance(getattr(host, 'backbone', None), nn.Module):
        return [kind for kind in kinds if kind != 'heads']
    # top-level parts (backbone, neck, ...) with whole heads, and with narrower ones
    parts = [{site.path.partition('.')[0] for site in find_sites(host, [kind]).values()}
             for kind in ('heads', 'head_channels')]
    alone = '|'.join(sorted(parts[0] - parts[1]))
    place = kinds.index('heads')
    kinds[place:place + 1] = [dict(kind='heads', where=rf'^({alone})\.')] if alone else []
    return kinds

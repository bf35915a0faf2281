"""The kinds of site that have a closed form, and a model's sites of these kinds."""

from collections.abc import Sequence

from torch import nn

from mmkcr.core import count_params
from mmkcr.core.checks import did_you_mean
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites import find_sites, why_not
from mmkcr.models.sites.base import KindConfig, kind_name

#: Kinds whose units can be chosen and refitted.
REFITTED = ('mlp_hidden', 'heads', 'head_channels', 'attention_outputs', 'channels', 'mlp_channels')
#: Default kinds of a call: they need no gather and lose least at the same MACs. Whole
#: heads are used where their channels cannot be selected.
DEFAULT_SITES = ('mlp_hidden', 'head_channels', 'heads', 'attention_outputs', 'channels')
#: Kinds for searches alone, with the reason.
_SEARCHED = dict(
    embedding='the residual stream stays whole down to 30 % of the MACs, so its width is for the '
              'search of Once for Both alone',
    head_operator='narrower heads lose less at the same MACs (docs/real_network.md), so '
                  'convolutions in place of heads are for searches and scores alone')
#: Families named to whoever has a backbone without sites: those of the hosts and timm, of which
#: others have adapters too, and all of ``transformers``.
FAMILIES = ('ViT', 'Swin', 'PVT v2', 'MiT', 'ConvNeXt', 'LeViT', 'BEiT', 'EVA-02', 'DINOv2')
HF_FAMILIES = ('ViT', 'DINOv2', 'DINOv3', 'SigLIP', 'CLIP', 'FLAVA', 'Swin', 'SegFormer',
               'DepthAnything', 'ViTDet', 'SAM', 'RT-DETR')
#: The part that is compressed: the backbone, or the whole model with its neck and heads.
SCOPES = ('backbone', 'model')


def searched(model: nn.Module, sites: Sequence[KindConfig] | None = None,
             scope: str = 'backbone', masks: Sequence[KindConfig] = ()) -> SearchSpace:
    """The search space of a model's backbone or of the whole model, created if there is none.

    Args:
        model (nn.Module): Changed in place: its backbone, or the model itself, gets the attribute
            ``search_space``.
        sites (Sequence[str | dict], optional): Kinds of site. Defaults to None: see
            :func:`default_kinds`.
        scope (str): One of :data:`SCOPES`. Defaults to ``'backbone'``.
        masks (Sequence[str | dict]): Masks on queries and keys that are put on it, as they begin.

    Raises:
        ValueError: A backbone without an adapter, or one that is not dense.
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
        _check_parts(model, kinds)
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


def _check_parts(model: nn.Module, kinds: Sequence[KindConfig]) -> None:
    """Refuse a whole model if none of its necks and heads has an adapter."""
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

    Raises:
        ValueError: One has no closed form.
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
    """The kinds of :data:`DEFAULT_SITES` that a host has, without two along the same axes.

    In a whole model, heads are removed as a whole only in parts where they cannot become narrower.
    """
    kinds: list[KindConfig] = [kind for kind in DEFAULT_SITES if not why_not(host, kind)]
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

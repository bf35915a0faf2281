"""The kinds by name, and their sites in a host network."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mmkcr.core import Axis, Site, Unsupported
from mmkcr.core.words import did_you_mean
from mmkcr.models.adapters import attention_views, mlp_views
from mmkcr.models.adapters.views import known_hosts

KindConfig = str | Mapping[str, Any]
#: Kinds of site by their names.
KINDS: dict[str, type['HostSite']] = {}


#: What makes an ordinary layer of one with another weight, by what the layer has.
#: Whose layers compute what their class says.
_LIBRARIES = ('torch', 'timm', 'transformers', 'mmcv', 'mmengine', 'mmpretrain', 'mmdet', 'mmseg',
              'mmkcr')
_REMEDIES = {
    'parametrizations': '`torch.nn.utils.parametrize.remove_parametrizations` leaves one',
    'weight_g': '`torch.nn.utils.remove_weight_norm` leaves one',
    'weight_u': '`torch.nn.utils.remove_spectral_norm` leaves one',
    'weight_orig': '`torch.nn.utils.prune.remove` makes the masks permanent',
    'bias_orig': '`torch.nn.utils.prune.remove` makes the masks permanent',
    'base_layer': 'merge the adapter first (`merge_and_unload()` of PEFT)',
    'original_layer': 'merge the adapter into the layer first',
}


def register_kind(cls: type['HostSite']) -> type['HostSite']:
    """Make a kind known by its name."""
    KINDS[cls.kind] = cls
    return cls


class HostSite(Site):
    """A site on an adapter's view of one module.

    Args:
        host (nn.Module): The network.
        view (Any): The adapter's view.
        path (str): Path of the module that the site belongs to.
        total (int): Number of units.
        groups (int): See :class:`~mmkcr.core.Site`. Defaults to 1.
    """

    #: Whether the kind looks at attention layers.
    of_attention: bool = False
    #: Options that a config of the kind may have besides ``kind`` and ``where``.
    options: tuple[str, ...] = ()

    def __init__(self, host: nn.Module, view: Any, path: str, total: int, groups: int = 1) -> None:
        super().__init__(host, path, total, groups)
        self.view = view

    def module(self, path: str) -> nn.Module:
        """A module of the host by its path."""
        return self.host.get_submodule(path)

    def widened(self, outputs: Any) -> Any:
        """The host's outputs in their dense width."""
        return outputs

    def claims(self) -> list[Axis]:
        """The axes that no other site may lie along: by default its own."""
        return self.axes()

    @classmethod
    def views(cls, host: nn.Module) -> list[Any]:
        """The views of the modules that the kind looks at.

        An entry may be an :class:`~mmkcr.core.Unsupported` with the reason instead of a view.
        """
        raise NotImplementedError

    @classmethod
    def of(cls, host: nn.Module, view: Any, **options: Any) -> 'HostSite':
        """The site on a view.

        Raises:
            Unsupported: The view does not offer the kind.
        """
        raise NotImplementedError


class MLPSite(HostSite):
    """Base class of the kinds that look at MLPs."""

    @classmethod
    def views(cls, host: nn.Module) -> list[Any]:
        """Views of the MLPs."""
        return mlp_views(host)


class AttentionSite(HostSite):
    """Base class of the kinds that look at attention layers."""

    of_attention = True

    @classmethod
    def views(cls, host: nn.Module) -> list[Any]:
        """Views of the attention layers."""
        return attention_views(host)


def find_sites(host: nn.Module, kinds: Sequence[KindConfig]) -> dict[str, HostSite]:
    """The sites of some kinds, in forward order.

    Args:
        host (nn.Module): A backbone.
        kinds (Sequence[str | dict]): Names of kinds, or dicts with ``kind`` and optionally a
            regular expression ``where`` for the paths of their modules, and options of the kind.

    Returns:
        dict[str, HostSite]: The sites by name.

    Raises:
        ValueError: A kind or option is unknown, the host does not have a kind, ``where`` matches
            no module, two kinds claim the same axis of a tensor, or as in :func:`check_layers`.
    """
    check_layers(host)
    sites: dict[str, HostSite] = {}
    for config in kinds:
        cls, where, options = _parse(config)
        found, reasons = _sites_of(host, cls, options)
        if not found:
            raise ValueError(_nothing_found(host, cls.kind, reasons))
        matching = {name: site for name, site in found.items() if re.search(where, site.path)}
        if not matching:
            raise ValueError(f'expected `where` of the kind `{cls.kind}` to match some of '
                             f'{len(found)} modules (such as `{next(iter(found.values())).path}`), '
                             f'found {where!r}')
        sites.update(matching)
    check_ties(host, sites)
    _check_axes(sites)
    # hosts register their modules in forward order
    order = {path: place for place, (path, _) in enumerate(host.named_modules())}
    return dict(sorted(sites.items(), key=lambda item: order[item[1].path]))


def check_layers(model: nn.Module) -> None:
    """Refuse layers whose weight is not a parameter of their own: slicing it would not last.

    Args:
        model (nn.Module): The network.

    Raises:
        ValueError: A layer with an adapter (LoRA), a mask, a norm or another parametrisation of
            its weight, a quantised or a sharded one; the message says which, and what to do.
    """
    for path, module in model.named_modules():
        odd = next((name for name in ('weight', 'bias') if not _owns(module, name)), '')
        if hasattr(module, '_orig_mod'):
            odd = 'forward'
        if odd:
            raise _odd_layer(module, path, odd)


def _odd_layer(module: nn.Module, path: str, name: str) -> ValueError:
    remedy = next((text for part, text in _REMEDIES.items() if hasattr(module, part)),
                  'merge adapters and masks into plain layers first, then quantise, compile or '
                  'shard the compressed network')
    found = f'with another `{name}`' if name == 'forward' else f'without such a `{name}`'
    return ValueError('expected layers whose weights are parameters of their own, found a '
                      f'`{type(module).__module__}.{type(module).__qualname__}` at `{path}` '
                      f'{found}: {remedy}')


def _owns(module: nn.Module, name: str) -> bool:
    """Whether an attribute is a parameter of the module's own, a buffer, or no tensor at all."""
    if name in module._parameters:
        value = module._parameters[name]
        return value is None or type(value) is nn.Parameter
    if name in module._buffers:
        return True
    value = getattr(module, name, None)
    # quantised layers have methods of these names
    return not isinstance(value, Tensor) and not (callable(value)
                                                  and not isinstance(value, nn.Module))


def _check_owned(host: nn.Module, view: Any) -> None:
    """Refuse a view with a layer of another kind than the adapter takes it for."""
    for name in ('inputs', 'projections', 'writers', 'output'):
        paths = getattr(view, name, ())
        for path in filter(None, (paths, ) if isinstance(paths, str) else paths):
            layer = host.get_submodule(path)
            if 'weight' not in layer._parameters:
                raise _odd_layer(layer, path, 'weight')
            # a subclass may compute anything with its weight
            if 'forward' in vars(layer) or \
                    type(layer).forward.__module__.partition('.')[0] not in _LIBRARIES:
                raise _odd_layer(layer, path, 'forward')


def why_not(host: nn.Module, kind: str) -> str:
    """The reason why a host has no site of a kind; '' if it has one."""
    found, reasons = _sites_of(host, KINDS[kind], {})
    return '' if found else (reasons or [f'no layer of `{type(host).__name__}` that the kind '
                                         'looks at has an adapter'])[0]


def _parse(config: KindConfig) -> tuple[type[HostSite], str, dict[str, Any]]:
    options = {'kind': config} if isinstance(config, str) else dict(config)
    kind, where = options.pop('kind', None), options.pop('where', '')
    if kind not in KINDS:
        raise ValueError(f'expected a kind of site among {sorted(KINDS)}, found {kind!r}'
                         f'{did_you_mean(str(kind), KINDS)}')
    unknown = sorted(set(options) - set(KINDS[kind].options))
    if unknown:
        raise ValueError(f'expected options of the kind `{kind}` among '
                         f'{["where", *KINDS[kind].options]}, found {unknown}')
    return KINDS[kind], where, options


def _sites_of(host: nn.Module, cls: type[HostSite],
              options: Mapping[str, Any]) -> tuple[dict[str, HostSite], list[str]]:
    found, reasons = {}, []
    try:
        views = cls.views(host)
    except Unsupported as reason:
        return {}, [str(reason)]
    for view in views:
        if isinstance(view, Unsupported):  # the adapter already knows why not
            reasons.append(str(view))
            continue
        _check_owned(host, view)
        try:
            site = cls.of(host, view, **options)
        except Unsupported as reason:
            reasons.append(str(reason))
        else:
            found[site.name] = site
    return found, reasons


def _nothing_found(host: nn.Module, kind: str, reasons: list[str]) -> str:
    name, possible = type(host).__name__, [other for other in KINDS if not why_not(host, other)]
    reason = f' ({reasons[0]})' if reasons else ''
    if possible:
        return (f'expected a kind of site that `{name}` has, of {possible}, found '
                f'`{kind}`{reason}')
    return (f'expected a backbone with MLPs or attention that an adapter knows (such as those of '
            f'{", ".join(known_hosts())}), found `{name}`{reason}')


def check_ties(model: nn.Module, sites: Mapping[str, HostSite]) -> None:
    """Refuse sites on a tensor that another layer has too: slicing one of them breaks the tie.

    A layer that is called at several places is one layer, and no tie.

    Args:
        model (nn.Module): The sites' host, or a model around it.
        sites (Mapping[str, HostSite]): Sites of the network.

    Raises:
        ValueError: Two layers share a weight, and a site lies along it.
    """
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for name, value in module._parameters.items():
            if value is not None:
                owners.setdefault(id(value), []).append(f'{path}.{name}')
    for name, site in sites.items():
        for axis in site.axes():
            shared = owners.get(id(axis.value), ())
            if len(shared) > 1:
                raise ValueError(
                    f'expected layers with weights of their own at the site `{name}`, found one '
                    f'tensor for {" and ".join(f"`{one}`" for one in shared[:3])}: give one of '
                    'them a copy (`nn.Parameter(weight.clone())`), or leave the site out by '
                    '`where`')


def _check_axes(sites: Mapping[str, HostSite]) -> None:
    """Refuse two sites along the same axis of a tensor, or along the same part of it."""
    # by tensor and dimension: first position, last position + 1, site
    claimed: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    for name, site in sites.items():
        for axis in site.claims():
            if axis.value is None:
                continue
            start, end = axis.span
            others = claimed.setdefault((id(axis.value), axis.dim), [])
            # another site with an overlapping range, else the site itself
            first = next((other for low, high, other in others
                          if other != name and low < end and start < high), name)
            if first != name:
                raise ValueError(f'expected kinds of site that share no axis of a tensor, found '
                                 f'`{first}` and `{name}` along one of '
                                 f'{tuple(axis.value.shape)}')
            others.append((start, end, name))

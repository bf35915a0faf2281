"""The kinds by name, and their sites in a host network."""

import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Type, Union

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from mmkcr.core import Axis, Site, Unsupported
from mmkcr.models.adapters import attention_views, mlp_views
from mmkcr.models.adapters.views import known_hosts

KindConfig = Union[str, Mapping[str, Any]]
#: Kinds of site by their names.
KINDS: Dict[str, Type['HostSite']] = {}


def register_kind(cls: Type['HostSite']) -> Type['HostSite']:
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
    options: Tuple[str, ...] = ()

    def __init__(self, host: nn.Module, view: Any, path: str, total: int, groups: int = 1) -> None:
        super().__init__(host, path, total, groups)
        self.view = view

    def module(self, path: str) -> nn.Module:
        """A module of the host by its path."""
        return self.host.get_submodule(path)

    def widened(self, outputs: Any) -> Any:
        """The host's outputs in their dense width."""
        return outputs

    def claims(self) -> List[Axis]:
        """The axes that no other site may lie along: by default its own."""
        return self.axes()

    def fitted(self) -> Tuple[str, ...]:
        """Paths of modules that a closed-form refit changes, besides the readers of the units."""
        return ()

    @classmethod
    def views(cls, host: nn.Module) -> List[Any]:
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
    def views(cls, host: nn.Module) -> List[Any]:
        """Views of the MLPs."""
        return mlp_views(host)


class AttentionSite(HostSite):
    """Base class of the kinds that look at attention layers."""

    of_attention = True

    @classmethod
    def views(cls, host: nn.Module) -> List[Any]:
        """Views of the attention layers."""
        return attention_views(host)


def find_sites(host: nn.Module, kinds: Sequence[KindConfig]) -> Dict[str, HostSite]:
    """The sites of some kinds, in forward order.

    Args:
        host (nn.Module): A backbone.
        kinds (Sequence[str | dict]): Names of kinds, or dicts with ``kind`` and optionally a
            regular expression ``where`` for the paths of their modules, and options of the kind.

    Returns:
        dict[str, HostSite]: The sites by name.

    Raises:
        ValueError: A kind or option is unknown, the host does not have a kind, ``where`` matches
            no module, two kinds claim the same axis of a tensor, or a weight of the host is
            computed from others (spectral or weight norm, any other parametrisation).
    """
    _check_weights(host)
    sites: Dict[str, HostSite] = {}
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
    _check_axes(sites)
    # hosts register their modules in forward order
    order = {path: place for place, (path, _) in enumerate(host.named_modules())}
    return dict(sorted(sites.items(), key=lambda item: order[item[1].path]))


def _check_weights(host: nn.Module) -> None:
    """Refuse weights that are computed at every call: slicing them would not last."""
    for path, module in host.named_modules():
        hooks = {type(hook).__name__ for hook in module._forward_pre_hooks.values()}
        if is_parametrized(module) or hooks & {'SpectralNorm', 'WeightNorm'}:
            raise ValueError(f'expected weights that are parameters, found a parametrised layer at '
                             f'`{path}`: `torch.nn.utils.parametrize.remove_parametrizations` '
                             '(or `torch.nn.utils.remove_spectral_norm`, `remove_weight_norm`) '
                             'leaves an ordinary one')


def why_not(host: nn.Module, kind: str) -> str:
    """The reason why a host has no site of a kind; '' if it has one."""
    found, reasons = _sites_of(host, KINDS[kind], {})
    return '' if found else (reasons or [f'no layer of `{type(host).__name__}` that the kind '
                                         'looks at has an adapter'])[0]


def _parse(config: KindConfig) -> Tuple[Type[HostSite], str, Dict[str, Any]]:
    options = {'kind': config} if isinstance(config, str) else dict(config)
    kind, where = options.pop('kind', None), options.pop('where', '')
    if kind not in KINDS:
        raise ValueError(f'expected a kind of site among {sorted(KINDS)}, found {kind!r}')
    unknown = sorted(set(options) - set(KINDS[kind].options))
    if unknown:
        raise ValueError(f'expected options of the kind `{kind}` among '
                         f'{["where", *KINDS[kind].options]}, found {unknown}')
    return KINDS[kind], where, options


def _sites_of(host: nn.Module, cls: Type[HostSite],
              options: Mapping[str, Any]) -> Tuple[Dict[str, HostSite], List[str]]:
    found, reasons = {}, []
    try:
        views = cls.views(host)
    except Unsupported as reason:
        return {}, [str(reason)]
    for view in views:
        if isinstance(view, Unsupported):  # the adapter already knows why not
            reasons.append(str(view))
            continue
        try:
            site = cls.of(host, view, **options)
        except Unsupported as reason:
            reasons.append(str(reason))
        else:
            found[site.name] = site
    return found, reasons


def _nothing_found(host: nn.Module, kind: str, reasons: List[str]) -> str:
    name, possible = type(host).__name__, [other for other in KINDS if not why_not(host, other)]
    reason = f' ({reasons[0]})' if reasons else ''
    if possible:
        return (f'expected a kind of site that `{name}` has, of {possible}, found '
                f'`{kind}`{reason}')
    return (f'expected a backbone with MLPs or attention that an adapter knows (such as those of '
            f'{", ".join(known_hosts())}), found `{name}`{reason}')


def _check_axes(sites: Mapping[str, HostSite]) -> None:
    """Refuse two sites along the same axis of a tensor, or along the same part of it."""
    # by tensor and dimension: first position, last position + 1, site
    claimed: Dict[Tuple[int, int], List[Tuple[int, int, str]]] = {}
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

"""The kinds by name, and their sites in a host network."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from mmkcr.core import Axis, BaseGate, MaskPoint, Site, SiteEntry, Unsupported
from mmkcr.core.checks import did_you_mean
from mmkcr.lazy import is_of
from mmkcr.models.adapters import attention_views
from mmkcr.models.adapters.views import LIBRARIES, known_hosts
from mmkcr.models.layers.norms import MaskedLayerNorm
from mmkcr.models.layers.take_over import is_patched, take_over

KindConfig = str | Mapping[str, Any]
#: Kinds of site by their names; the package fills it.
KINDS: dict[str, type['HostSite']] = {}


class HostSite(Site):
    """A site on an adapter's view of one module; other arguments as of :class:`~mmkcr.core.Site`.
    """

    #: Takes a host; gives the views of the modules that the kind looks at, or an
    #: :class:`~mmkcr.core.Unsupported` with the reason instead of one.
    views: ClassVar[Callable[[nn.Module], list[Any]]]
    #: Whether the kind looks at attention layers.
    of_attention: bool = False
    #: Bases that a profile may move the units to, as the host computes the same in them:
    #: ``'channels'``, any mixtures within a head, or ``'pairs'`` of rotary positions.
    bases: ClassVar[str | None] = None
    #: Options that a config of the kind may have besides ``kind`` and ``where``.
    options: tuple[str, ...] = ()

    def __init__(self, host: nn.Module, view: Any, path: str, total: int, groups: int = 1) -> None:
        super().__init__(host, path, total, groups)
        self.view = view

    def module(self, path: str) -> nn.Module:
        """A module of the host by its path."""
        return self.host.get_submodule(path)

    def exchange(self, path: str, module: nn.Module) -> None:
        """Put a module in the place of another, in its mode."""
        before = self.module(path)
        if module is not before:
            self.host.set_submodule(path, module.train(before.training))

    def has_plain_form(self) -> bool:
        """Whether classes of the host compute what is left, without hooks of this package."""
        return True

    def inherit_dense(self, state: dict[str, Tensor], prefix: str) -> bool:
        """Cut the entries of a dense layer in a state to the part that a replaced layer keeps.

        Args:
            state (dict[str, Tensor]): Of the dense network; changed in place.
            prefix (str): Beginning of the host's keys in it.

        Returns:
            bool: Whether anything was cut. By default nothing is, as no kind but
            ``head_operator`` replaces layers.
        """
        return False

    def fold(self, entry: SiteEntry) -> SiteEntry:
        """Give a replaced layer plain weights; returns its entry in a structure."""
        return entry

    def widened(self, outputs: Any) -> Any:
        """The host's outputs in their dense width."""
        return outputs

    def mask_points(self) -> list[MaskPoint]:
        """By default where a scale folds: behind layers that write the units, or before readers."""
        points = []
        for axis in self.axes():
            layer = axis.module
            if axis.folds and axis.name == 'weight':
                written = axis.dim == getattr(layer, 'transposed', False)
                points.append(MaskPoint(layer, 'output' if written else 'input',
                                        channel_dim(layer), axis.repeats, axis.inner))
        return points

    def claims(self) -> list[Axis]:
        """The axes that no other site may lie along: by default its own."""
        return self.axes()

    def norms(self) -> Iterable[tuple[str, int]]:
        """Layer norms over the units: path, entries per unit. Defaults to none."""
        return ()

    def attach(self, gate: BaseGate) -> None:
        """Attach the gate, and make the norms over the units follow its mask."""
        super().attach(gate)
        for path, inner in self.norms():
            self.host.set_submodule(path, take_over(MaskedLayerNorm, self.module(path),
                                                    shared=(gate, ), inner=inner))

    def detach(self) -> None:
        """Undo :meth:`attach`."""
        for path, _ in self.norms() if self.gate is not None else ():
            norm = take_over(nn.LayerNorm, self.module(path), ('shared', 'inner'))
            self.host.set_submodule(path, norm)
        super().detach()

    @classmethod
    def of(cls, host: nn.Module, view: Any, **options: Any) -> 'HostSite':
        """The site on a view; raises :class:`~mmkcr.core.Unsupported` with the reason for none.

        Args:
            host (nn.Module): The network.
            view (View): Adapter's view of a module.
            **options: Of the kind.
        """
        raise NotImplementedError


class AttentionSite(HostSite):
    """Base class of the kinds that look at attention layers."""

    views = staticmethod(attention_views)
    of_attention = True


def channel_dim(layer: nn.Module) -> int:
    """Dimension of the channels that a layer reads and writes: 1 of maps, -1 of tokens."""
    return 1 if isinstance(layer, (_ConvNd, _BatchNorm, nn.GroupNorm)) else -1


def linear_paths(host: nn.Module) -> list[str]:
    """Paths of EfficientViT's linear attention layers, which are views of themselves."""
    return [path for path, module in host.named_modules()
            if is_of(module, 'mmkcr.models.layers.lite_mla.LiteMLA')]


def kind_name(kind: KindConfig) -> str:
    """Name of a kind of site, of its config or alone."""
    return kind if isinstance(kind, str) else kind['kind']


def find_sites(host: nn.Module, kinds: Sequence[KindConfig]) -> dict[str, HostSite]:
    """The sites of some kinds in a host, by name, in forward order.

    Kinds are names, or dicts with ``kind`` and optionally a regular expression ``where`` for the
    paths of their modules, and options of the kind.

    Raises:
        ValueError: A kind or option is unknown, the host does not have a kind, ``where`` matches
            no module, two kinds claim the same axis of a tensor, or as in :func:`check_layers`.
    """
    check_layers(host)
    sites: dict[str, HostSite] = {}
    for config in kinds:
        options = {'kind': config} if isinstance(config, str) else dict(config)
        kind, where = options.pop('kind', None), options.pop('where', '')
        if kind not in KINDS:
            raise ValueError(f'expected a kind of site among {sorted(KINDS)}, found {kind!r}'
                             f'{did_you_mean(str(kind), KINDS)}')
        unknown = sorted(set(options) - set(KINDS[kind].options))
        if unknown:
            raise ValueError(f'expected options of the kind `{kind}` among '
                             f'{["where", *KINDS[kind].options]}, found {unknown}')
        kind_sites, reasons = _sites_of(host, KINDS[kind], options)
        if not kind_sites:
            raise ValueError(_nothing_found(host, kind, reasons))
        matching = {name: site for name, site in kind_sites.items() if re.search(where, site.path)}
        if not matching:
            one = next(iter(kind_sites.values()))
            raise ValueError(f'expected `where` of the kind `{kind}` to match some of '
                             f'{len(kind_sites)} modules (such as `{one.path}`), found {where!r}')
        sites.update(matching)
    check_ties(host, sites)
    _check_axes(sites)
    # hosts register their modules in forward order
    order = {path: place for place, (path, _) in enumerate(host.named_modules())}
    return dict(sorted(sites.items(), key=lambda item: order[item[1].path]))


def check_layers(model: nn.Module) -> None:
    """Refuse layers whose weight is not a parameter of their own: slicing it would not last.

    They have an adapter (LoRA), a mask, a norm or another parametrisation of their weight, or are
    quantised or sharded.
    """
    for path, module in model.named_modules():
        for name in ('weight', 'bias'):
            value = getattr(module, name, None)
            if name in module._parameters:
                ordinary = value is None or type(value) is nn.Parameter
            else:  # quantised layers have methods of these names
                ordinary = name in module._buffers or not isinstance(value, Tensor) and (
                    not callable(value) or isinstance(value, nn.Module))
            if not ordinary:
                raise _odd_layer(module, path, f'without such a `{name}`')
        # a function on the instance would also run, in a copy, what it was made of
        if hasattr(module, '_orig_mod') or inspect.isfunction(vars(module).get('forward')):
            raise _odd_layer(module, path, 'with another `forward`')


def _odd_layer(module: nn.Module, path: str, form: str) -> ValueError:
    return ValueError(
        'expected layers whose weights are parameters of their own, found a '
        f'`{type(module).__module__}.{type(module).__qualname__}` at `{path}` {form}: merge '
        'adapters (`merge_and_unload()` of PEFT), masks (`torch.nn.utils.prune.remove`) and norms '
        '(`torch.nn.utils.parametrize.remove_parametrizations`) into plain layers first, then '
        'quantise, compile or shard the compressed network')


def _check_owned(host: nn.Module, view: Any) -> None:
    """Refuse a view with a layer of another kind than the adapter takes it for."""
    own = getattr(view, 'path', view)  # linear attention layers are their own paths
    if is_patched(host.get_submodule(own)):
        raise _odd_layer(host.get_submodule(own), own, 'with another `forward`')
    for name in ('inputs', 'projections', 'writers', 'output'):
        paths = getattr(view, name, ())
        for path in filter(None, (paths, ) if isinstance(paths, str) else paths):
            layer = host.get_submodule(path)
            if 'weight' not in layer._parameters:
                raise _odd_layer(layer, path, 'without such a `weight`')
            # a subclass may compute anything with its weight
            if is_patched(layer) or not type(layer).forward.__module__.startswith(
                    ('torch.', 'mmengine.', *LIBRARIES)):
                raise _odd_layer(layer, path, 'with another `forward`')


def why_not(host: nn.Module, kind: str) -> str:
    """The reason why a host has no site of a kind; '' if it has one."""
    sites, reasons = _sites_of(host, KINDS[kind], {})
    return '' if sites else (reasons or [f'no layer of `{type(host).__name__}` that the kind '
                                         'looks at has an adapter'])[0]


def _sites_of(host: nn.Module, cls: type[HostSite],
              options: Mapping[str, Any]) -> tuple[dict[str, HostSite], list[str]]:
    sites, reasons = {}, []
    for view in cls.views(host):
        try:
            if isinstance(view, Unsupported):  # the adapter already knows why not
                raise view
            _check_owned(host, view)
            site = cls.of(host, view, **options)
            sites[site.name] = site
        except Unsupported as reason:
            reasons.append(str(reason))
    return sites, reasons


def _nothing_found(host: nn.Module, kind: str, reasons: list[str]) -> str:
    name, possible = type(host).__name__, [other for other in KINDS if not why_not(host, other)]
    reason = f' ({reasons[0]})' if reasons else ''
    if possible:
        return (f'expected a kind of site that `{name}` has, of {possible}, found '
                f'`{kind}`{reason}')
    return (f'expected a backbone with MLPs or attention that an adapter knows (such as those of '
            f'{", ".join(known_hosts())}), found `{name}`{reason}')


def check_ties(model: nn.Module, sites: Mapping[str, HostSite]) -> None:
    """Refuse sites on a tensor that another layer of the model has: slicing would break the tie.

    A layer that is called at several places is one layer, and no tie.
    """
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for name, value in module.named_parameters(path, False, remove_duplicate=False):
            owners.setdefault(id(value), []).append(name)
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
            for low, high, other in others:
                if other != name and low < end and start < high:
                    raise ValueError('expected kinds of site that share no axis of a tensor, found '
                                     f'`{other}` and `{name}` along one of '
                                     f'{tuple(axis.value.shape)}')
            others.append((start, end, name))

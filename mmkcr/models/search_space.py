"""The three states of any backbone: dense, supernet, subnet."""

import copy
import dataclasses
import inspect
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mmkcr.core import KEPT, BaseGate, SiteEntry, Structure, count_params, digest
from mmkcr.lazy import is_of
from .gating import attach_gates, has_gate_config
from .layers.plain import make_plain
from .sites import QKMaskSite, find_sites
from .sites.base import HostSite, KindConfig, kind_name
from .slicing import sites_that_slice, slice_as_state, slice_to_entries
from .strict_loading import check_state, inherit_dense, take_kept

StructureLike = str | Mapping[str, Any] | Structure | None


class SearchSpace:
    """Sites of a host network, and its state: dense, with gates (supernet), or sliced (subnet).

    It begins dense. :meth:`slice_to` and :meth:`attach_gates` lead to the other states. The host
    keeps its class, its keys and its methods; this is its attribute ``search_space``.

    Args:
        host (nn.Module): The network; changed in place. Its attribute ``optional_keys``, if it has
            one, is a regular expression of the keys that a checkpoint may lack or have in excess,
            which is then logged: output norms, which depend on ``out_indices``.
        kinds (Sequence[str | dict]): Kinds of site, see :func:`~mmkcr.models.sites.find_sites`.
        backbone (dict, optional): Registered ``type`` and arguments that build the host, for
            structure files. Defaults to :func:`Searchable` of the host as its former search space
            describes it, or of its class without arguments.
        method (str): Name of the method, for structure files. Defaults to ``''``: the names of
            the kinds.

    Raises:
        ValueError: A kind that the host does not have, or without ``backbone`` a host that is not
            dense.
    """

    def __init__(self, host: nn.Module, kinds: Sequence[KindConfig] = (),
                 backbone: Mapping[str, Any] | None = None, method: str = '') -> None:
        former: SearchSpace | None = getattr(host, 'search_space', None)
        self.host, self.kinds = host, tuple(kinds)
        self.backbone = copy.deepcopy(dict(backbone or _describe(host, kinds, former)))
        self.structure: Structure | None = None
        #: Entries of the sites that are sliced for good: all of a subnet's.
        self.fixed: dict[str, SiteEntry] = {}
        #: Numbers of :func:`digest` that weights of this network have: its own, and its start's.
        self.digests: list[int] = []
        #: Whether replaced heads may start from a dense network's weights.
        self.inherits_dense = False
        self._sites: dict[str, HostSite] = {}
        #: Sites without gates, masks on queries and keys, that are not applied yet.
        self._waiting: list[HostSite] = []
        self._dense_params = count_params(host)
        for name, site in find_sites(host, kinds).items():
            if site.gated:
                site.open()
                self._sites[name] = site
            else:
                self._waiting.append(site)
        self.method = method or '+'.join(map(kind_name, kinds))  # all of which exist
        if not self._sites:
            self.put_masks()
        # a former space, as of the host's own class, would check and rename what this one loads
        for handle in getattr(former, '_handles', ()):
            handle.remove()
        host.search_space = self
        self._handles = [host.register_load_state_dict_pre_hook(self._before_loading),
                         host.register_forward_pre_hook(self._begin),
                         host.register_forward_hook(self._finish)]

    # ---- sites ----------------------------------------------------------------------------------

    def put_masks(self) -> None:
        """Put the masks on queries and keys on a dense host, with their initial values."""
        while self._waiting:
            self._waiting.pop(0).prepare()

    @property
    def sites(self) -> dict[str, HostSite]:
        """The sites by name, in forward order; a host without any is refused."""
        if not self._sites:
            raise ValueError(f'expected `{type(self.host).__name__}` with searchable layers, '
                             f'found none with the arguments {self.backbone}')
        return self._sites

    def totals(self) -> dict[str, int]:
        """Units of every site of the dense network."""
        return {name: site.total for name, site in self.sites.items()}

    def gates(self) -> dict[str, BaseGate]:
        """The gates of a supernet by site; empty in the other states."""
        return {name: site.gate for name, site in self.gated_sites().items()}

    def gated_sites(self) -> dict[str, HostSite]:
        """The sites that have a gate."""
        return {name: site for name, site in self._sites.items() if site.gate is not None}

    def state_name(self) -> str:
        """``'dense'``, ``'supernet'`` or ``'subnet'``."""
        if self.structure is not None:
            return 'subnet'
        return 'supernet' if self.gates() else 'dense'

    # ---- other states ---------------------------------------------------------------------------

    def attach_gates(self, gates: Mapping[str, Any]) -> None:
        """Make the host a supernet, see :func:`~mmkcr.models.gating.attach_gates`."""
        attach_gates(self.sites, gates)


    @property
    def type_name(self) -> str:
        """Registered name of the backbone, without a scope."""
        return self.backbone['type'].split('.')[-1]

    def _accepted_type(self, structure: Structure) -> str:
        """The type that a structure must name: our own, a parent class's, or the class's alias."""
        name = structure.backbone['type'].split('.')[-1]
        classes, alias = [cls.__name__ for cls in type(self.host).__mro__], None
        if self.type_name == 'Searchable' != name:
            from mmkcr.registry import MODELS
            alias = MODELS.get(f'mmkcr.{name}')
        # a named class, see `searchable`, is another name of the host behind its mixins
        if name in classes or inspect.isclass(alias) and hasattr(alias, 'kinds') and \
                isinstance(self.host, alias.__bases__[-1]):
            return name
        return self.type_name

    def slice_to(self, structure: Structure, gates: Collection[str] = ()) -> None:
        """Slice the dense network or the supernet to a structure, in place, with its weights.

        See also :meth:`record_structure`.

        Args:
            structure (Structure): Of this backbone.
            gates (Collection[str]): Keys of a config of gates that are to follow. Sites that get
                one stay whole, and only the rest of the structure has to fit. Defaults to none.

        Raises:
            ValueError: The host is a subnet, the structure is of another backbone or has another
                entry at a site that is sliced already, or all sites would get gates.
        """
        if self.structure is not None:
            raise ValueError('expected a dense backbone or a supernet to slice, found a subnet of '
                             f'`{self.type_name}`')
        gated = {name for name, site in self.sites.items() if has_gate_config(site, gates)}
        if gated == set(self.sites):
            raise ValueError('expected `gates` (supernet) or `structure` (subnet) of '
                             f'`{self.type_name}`, found both')
        entries = {name: entry for name, entry in structure.sites.items() if name not in gated}
        dataclasses.replace(structure, sites=entries).validate(
            {name: total for name, total in self.totals().items() if name not in gated},
            self._accepted_type(structure))
        for name, entry in self.fixed.items():  # before anything is sliced
            if entries.get(name, entry) != entry:
                raise ValueError(f'expected site `{name}` as the supernet has it, found another in '
                                 'the structure')
        slice_to_entries(self.sites, {name: entry for name, entry in entries.items()
                                      if name not in self.fixed})
        self.record_structure(structure, gated)

    def record_structure(self, structure: Structure, gated: Collection[str] = ()) -> None:
        """Record that the sites were sliced to a structure, for good.

        No other place makes a subnet. A digest of the kept units is put into the state, so weights
        of other units are refused.

        Args:
            structure (Structure): With the units that are left.
            gated (Collection[str]): Names of sites that are left to the search that follows.
                Defaults to none.
        """
        self.fixed = {name: entry for name, entry in structure.sites.items() if name not in gated}
        kept = digest(self.fixed)
        # a search may start from the weights of the whole structure
        self.digests = [int(kept), int(digest(structure.sites))]
        self.host.register_buffer(KEPT, kept.to(next(self.host.parameters()).device))
        if not gated:
            self.structure = structure

    def structure_for(self, kept: Mapping[str, Tensor]) -> Structure:
        """Structure of this backbone with the given units; sites not given keep all of theirs."""
        entries = {}
        for name, site in self.sites.items():
            units = kept[name].tolist() if name in kept else list(range(site.total))
            operator = next(iter(site.operators()), None) if len(units) < site.total else None
            entries[name] = SiteEntry.from_dict(
                name, dict(total=site.total, kept=units, operator=operator))
        return Structure(copy.deepcopy(self.backbone), entries | self.fixed, self.method)

    def find_dense_attention(self) -> dict[str, list[str]]:
        """Attention layers of the host that no site lies in: their paths by the class's name.

        A layer of attention has parameters, and a class whose name says so.
        """
        cut = {axis.module for site in self._sites.values() for axis in site.axes()}
        dense: dict[str, list[str]] = {}
        inside = ()
        for path, module in self.host.named_modules():
            if inside and path.startswith(inside) or not count_params(module):
                continue
            name = type(module).__name__
            if re.search('atte?n', name, re.IGNORECASE) and cut.isdisjoint(module.modules()):
                dense.setdefault(name, []).append(path)
                inside = (*inside, f'{path}.')
        return dense

    def sliced_params(self) -> int:
        """Parameters of the dense network that this supernet has lost by slicing."""
        gates = sum(map(count_params, self.gates().values()))
        slice_themselves = bool(sites_that_slice(self._sites))
        return self._dense_params + gates - count_params(self.host) if slice_themselves else 0

    # ---- hooks of the host ----------------------------------------------------------------------

    def _begin(self, host: nn.Module, inputs: tuple) -> None:
        """Tell the gates that a forward pass begins."""
        for site in self._sites.values():
            site.renew_masks()
        if host.training:
            for gate in self.gates().values():
                gate.refresh()

    def _finish(self, host: nn.Module, inputs: tuple, outputs: Any) -> Any:
        """Widen features to the dense width and restore the images' memory layout.

        Operators of mmcv such as ``RoIAlign`` read maps as if they were channels first; given
        another layout, boxes would be wrong without an error.
        """
        for site in self._sites.values():
            outputs = site.widened(outputs)
        first = inputs[0] if inputs and isinstance(inputs[0], Tensor) else None
        return _channels_first(outputs) if first is not None and first.is_contiguous() else outputs

    def _before_loading(self, host: nn.Module, state_dict: dict[str, Tensor], prefix: str,
                        *_: Any) -> None:
        """Adapt a state_dict to this network, and refuse one that would load only in part."""
        if self.inherits_dense:
            inherit_dense(self._sites, state_dict, prefix, self.type_name,
                          getattr(self.host, KEPT))
        slice_as_state(self._sites, state_dict, prefix)
        take_kept(self.host, state_dict, prefix, self.type_name, self.digests)
        check_state(self.host, state_dict, prefix, self.type_name, self.state_name(), self.gates())


def _describe(host: nn.Module, kinds: Sequence[KindConfig],
              former: SearchSpace | None) -> dict[str, Any]:
    """Config of a :func:`Searchable` of a host, as its former search space describes it."""
    inner = dict(type=f'{type(host).__module__}.{type(host).__qualname__}')
    if former is not None:
        if former.state_name() != 'dense':
            raise ValueError(f'expected a dense backbone, found a {former.state_name()}')
        # a `Searchable` describes its host below `backbone`, a named class itself
        inner = former.backbone.get('backbone', former.backbone)
    return dict(type='mmkcr.Searchable', sites=list(kinds), backbone=inner)


def _channels_first(outs: Any) -> Any:
    if isinstance(outs, Tensor):
        return outs.contiguous() if outs.ndim == 4 else outs
    if type(outs) in (list, tuple):
        return type(outs)(map(_channels_first, outs))
    return outs


def leave_ordinary(model: nn.Module) -> None:
    """Take the search spaces off a model's subnets: plain modules without hooks of ours are left.

    Selections of channels, and attention that the host cannot compute, become graphs of torch's
    operators, see :func:`~mmkcr.models.layers.plain.make_plain`. Left as they are: named classes
    (``KCRSwinTransformer``), and subnets with parts that the hosts do not have: narrower residual
    streams, which are widened behind the network, heads replaced by other operators, and masks on
    queries and keys.

    A warning names layers whose attention maps are lost: of CLIP and SigLIP of transformers 4, and
    of DINOv3 with narrower heads.
    """
    for space in search_spaces(model):
        host, sites = space.host, space._sites.values()  # none, of masks alone
        if is_of(host, 'mmkcr.models.searchable.SearchableBackbone') or QKMaskSite.masks(host) or \
                not all(site.has_plain_form() for site in sites):
            continue
        for handle in space._handles:
            handle.remove()
        del host.search_space
        host._buffers.pop(KEPT, None)
        mute = [path for path, layer in host.named_modules()
                if getattr(layer, 'loses_maps', False)]
        if mute:
            warnings.warn(f'expected attention maps (`output_attentions=True`) of all layers of '
                          f'`{type(host).__name__}`, found {len(mute)} compressed layers that '
                          f'return none, as `{mute[0]}`: read maps from the dense network',
                          stacklevel=2)
        make_plain(host)


def search_spaces(model: nn.Module) -> list[SearchSpace]:
    """Search spaces of all searchable modules in a model."""
    # in the dictionary: where a module has none, its `__getattr__` looks in three others and fails
    return [space for module in model.modules()
            if isinstance(space := vars(module).get('search_space'), SearchSpace)]

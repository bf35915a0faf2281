"""The three states of any backbone: dense, supernet, subnet.

A host network keeps its class, its keys and its methods. Its :class:`SearchSpace`, the attribute
``search_space``, holds the sites that some kinds found in it. It puts gates there (supernet) or
slices them (subnet).
"""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mmkcr.core import (
    KEPT,
    Axis,
    BaseGate,
    SiteEntry,
    Structure,
    count_params,
    digest,
    scale_axes,
    slice_axes,
)
from mmkcr.lazy import is_of
from .backbone_loading import check_state, inherit_dense, take_kept
from .head_choice import choose_heads, is_choice
from .layers.plain import make_plain
from .sites import QKMaskSite, find_sites
from .sites.base import KINDS, HostSite, KindConfig, kind_name

StructureLike = str | Mapping[str, Any] | Structure | None


class SearchSpace:
    """Sites of a host network, with their gates or their kept units.

    Args:
        host (nn.Module): The network; changed in place.
        kinds (Sequence[str | dict]): Kinds of site, see
            :func:`~mmkcr.models.sites.find_sites`.
        backbone (dict, optional): Registered ``type`` and arguments that build the host, for
            structure files. Defaults to the host's class, without arguments.
        gates (dict, optional): Config of the gates without ``total``; or one config per kind, such
            as ``dict(heads=dict(type=...))``. Sites of kinds without a config are sliced as in
            ``structure``, or stay whole.
        structure (str | dict | Structure, optional): Structure file; or heads to replace,
            ``dict(blocks=[...])`` or ``dict(scores=<file>, replace=...)``, see
            :func:`~mmkcr.models.head_choice.choose_heads`, and then dense weights can be loaded.
        method (str): Name of the method, for structure files. Defaults to ``''``: those of the
            kinds.
        optional_keys (str): Regular expression of the keys that a checkpoint may lack or have in
            excess, which is then logged: output norms, which depend on ``out_indices``. Defaults
            to none.

    Raises:
        ValueError: A kind that the host does not have, ``gates`` and ``structure`` for one site,
            or a structure of another backbone.
    """

    def __init__(self, host: nn.Module, kinds: Sequence[KindConfig] = (),
                 backbone: Mapping[str, Any] | None = None,
                 gates: Mapping[str, Any] | None = None, structure: StructureLike = None,
                 method: str = '', optional_keys: str = r'$^') -> None:
        self.host, self.kinds = host, tuple(kinds)
        self.backbone, self.optional_keys = dict(backbone or class_of(host)), optional_keys
        self.structure: Structure | None = None
        #: Entries of the sites that are sliced for good: all of a subnet's.
        self.fixed: dict[str, SiteEntry] = {}
        self._attached: dict[str, list[Axis]] = {}
        self._sites: dict[str, HostSite] = {}
        #: Sites without gates, masks on queries and keys, that are not applied yet.
        self._waiting: list[HostSite] = []
        self._dense_params = count_params(host)
        # before the gates: they are built with the number of units that the kinds find
        for name, site in find_sites(host, kinds).items():
            if site.gated:
                site.open()
                self._sites[name] = site
            else:
                self._waiting.append(site)
        self.method = method or '+'.join(map(kind_name, kinds))
        if gates is not None or structure is not None or not self._sites:
            self.put_masks()
        builders = {} if gates is None else self._gate_builders(gates)
        #: Whether heads were chosen without a file: they may start from a dense network's weights.
        self.chosen = is_choice(structure)
        if self.chosen:
            structure = choose_heads(self, structure)
        if structure is not None:
            self._take_structure(Structure.load(structure), builders)
        for name, build in builders.items():
            site = self.sites[name]
            # gates live where their site's weights do
            site.attach(build().to(next(site.owner.parameters()).device))
        together = list(self.gates().values())
        for gate in together:  # some choose together, such as the k best of all
            gate.join(together)
        # a former space, as of the host's own class, would check and rename what this one loads
        for handle in getattr(getattr(host, 'search_space', None), '_handles', ()):
            handle.remove()
        host.search_space = self
        self._handles = [host.register_load_state_dict_pre_hook(self._before_loading),
                         host.register_forward_pre_hook(self._begin),
                         host.register_forward_hook(self._finish)]

    @classmethod
    def of_dense(cls, host: nn.Module, kinds: Sequence[KindConfig]) -> 'SearchSpace':
        """Give a dense host a search space with some kinds, in place of one that it may have.

        Raises:
            ValueError: The host is a supernet or a subnet, or does not have a kind.
        """
        before: SearchSpace | None = getattr(host, 'search_space', None)
        if before is None:
            return cls(host, kinds, described(class_of(host), kinds))
        if before.state_name() != 'dense':
            raise ValueError(f'expected a dense backbone, found a {before.state_name()}')
        # a `Searchable` describes its host below `backbone`, a named class itself
        backbone = before.backbone.get('backbone', before.backbone)
        return cls(host, kinds, described(backbone, kinds), optional_keys=before.optional_keys)

    def leave(self) -> None:
        """Take the search space and its hooks off the host; see :func:`leave_ordinary`."""
        kinds = {site.kind for site in self._sites.values()
                 if site.kind != 'embedding' or site.present < site.total}
        if kinds & {'head_operator', 'embedding'} or QKMaskSite.masks(self.host):
            return
        for handle in self._handles:
            handle.remove()
        del self.host.search_space
        self.host._buffers.pop(KEPT, None)
        make_plain(self.host)

    # ---- sites ----------------------------------------------------------------------------------

    def put_masks(self) -> None:
        """Put the masks on queries and keys on a dense host, with their initial values."""
        while self._waiting:
            self._waiting.pop(0).prepare()

    @property
    def sites(self) -> dict[str, HostSite]:
        """The sites by name, in forward order.

        Raises:
            ValueError: There is none.
        """
        if not self._sites:
            raise ValueError(f'expected a `{type(self.host).__name__}` with searchable layers, '
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

    # ---- gates ----------------------------------------------------------------------------------

    def _gate_builders(self, gates: Mapping[str, Any]) -> dict[str, Callable[[], BaseGate]]:
        """What builds the gate of every site that has one."""
        from mmkcr.registry import MODELS  # of MMEngine, which only a search needs
        kinds = {site.kind for site in self.sites.values()}
        # one config for all, one per kind, or both: then a kind's entries override the common ones
        given = {key: value for key, value in gates.items() if key in KINDS}
        common = {key: value for key, value in gates.items() if key not in KINDS}
        # without a common `type` any other key could only be the name of a kind
        unknown = sorted((set(given) if 'type' in common else set(gates)) - kinds)
        if unknown or not gates:
            raise ValueError(f'expected `gates` with a `type`, or by kind among {sorted(kinds)}, '
                             f'found {sorted(gates)}')
        builders = {}
        for name, site in self.sites.items():
            if 'type' not in common and site.kind not in given:
                continue
            config = {**common, **given.get(site.kind, {})}
            cls = MODELS.get(config['type'])
            # the gate class's own search space for this kind, such as the steps of its options
            defaults = getattr(cls, 'space', {}).get(site.kind, {})
            grouped = {'groups': site.groups} if getattr(cls, 'grouped', False) else {}
            if cls is not None and site.rows > 1 and not grouped:
                # the selection would be refused after the search
                raise ValueError(
                    'expected gates that keep equally many units of every head at sites of '
                    f'kind `{site.kind}`, such as `mmkcr.BiMaskGate`, found '
                    f'`{config["type"]}`; sites of kind `heads` take any gate')
            builders[name] = partial(MODELS.build,
                                     {**defaults, **config, **grouped, 'total': site.total})
        return builders

    # ---- structures -----------------------------------------------------------------------------

    def _take_structure(self, structure: Structure, gated: Mapping[str, Any]) -> None:
        """Become the subnet, or fix the sites without gates beside those with gates."""
        if not gated:
            self.slice_to(structure)
            return
        if set(gated) == set(self.sites):
            raise ValueError('expected `gates` (supernet) or `structure` (subnet) of '
                             f'`{self.type_name}`, found both')
        fixed = {name: entry for name, entry in structure.sites.items() if name not in gated}
        # only the part of the structure that is fixed has to fit
        dataclasses.replace(structure, sites=fixed).validate(
            {name: total for name, total in self.totals().items() if name not in gated},
            self._accepted_type(structure))
        self._slice_all(fixed)

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

    def slice_to(self, structure: Structure) -> None:
        """Slice the dense network or the supernet to a structure, in place, with its weights.

        Raises:
            ValueError: The structure belongs to another backbone, or this one is a subnet already.
        """
        if self.structure is not None:
            raise ValueError('expected a dense backbone or a supernet to slice, found a subnet of '
                             f'`{self.type_name}`')
        structure.validate(self.totals(), self._accepted_type(structure))
        other = next((name for name, entry in self.fixed.items()
                      if entry != structure.sites[name]), None)
        if other is not None:
            raise ValueError(f'expected site `{other}` as the supernet has it, found another in '
                             'the structure')
        self._slice_all(structure.sites)
        self.structure = structure

    def _slice_all(self, sites: Mapping[str, SiteEntry]) -> None:
        """Slice sites, and put a digest of the kept units into the state, for strict loading."""
        device = next(self.host.parameters()).device
        for name, entry in sites.items():
            if name in self.fixed:
                continue
            site, operators = self.sites[name], self.sites[name].operators()
            if entry.operator is not None and entry.operator not in operators:
                raise ValueError(f'expected an `operator` among {sorted(operators)} at site '
                                 f'`{name}`, found `{entry.operator}`')
            kept = torch.tensor(entry.kept, dtype=torch.int64, device=device)
            site.check(kept)
            # a bi-mask is part of the weights from now on: what is left of it differs from 1
            if site.gate is not None and hasattr(site.gate, 'folded'):
                self._follow(name, kept, True)
            site.slice_to(kept, entry.operator)
        self.fixed = dict(sites)
        if sites:
            self.host.register_buffer(KEPT, digest(sites).to(device))

    def structure_for(self, kept: Mapping[str, Tensor]) -> Structure:
        """Structure of this backbone with the given units; sites not given keep all of theirs."""
        sites = {}
        for name, site in self.sites.items():
            units = kept[name].tolist() if name in kept else list(range(site.total))
            replaced = len(units) < site.total and site.operators()
            sites[name] = dict(total=site.total, kept=units,
                               operator=replaced[0] if replaced else None)
        sites.update({name: entry.to_dict() for name, entry in self.fixed.items()})
        return Structure.load(dict(format_version=1, method=self.method,
                                   backbone=copy.deepcopy(self.backbone), sites=sites))

    def fold_fixed(self) -> None:
        """Give heads that a structure replaced, beside sites with gates, plain weights."""
        self.fixed = {name: self.sites[name].fold(entry) if entry.operator else entry
                      for name, entry in self.fixed.items()}

    # ---- slicing while it trains (Once for Both, section 3.3) -----------------------------------

    def attach_axis(self, name: str, axis: Axis) -> None:
        """Let a parameter outside the host, such as a mask token, be sliced with a gated site."""
        self._attached.setdefault(name, []).append(axis)

    def slice_units(self, name: str, kept: Tensor, optimizer: Optimizer | None = None) -> bool:
        """Slice a site of a supernet and its gate, see :meth:`~mmkcr.core.Site.slice_units`.

        Returns whether anything changed.
        """
        site, gate = self.sites[name], self.sites[name].gate
        if len(kept) == gate.present:
            return False
        units = site.slice_units(kept, optimizer)
        # axes along the units of the gate's own parameters and buffers, and attached axes
        slice_axes([Axis(gate, 'importance'), Axis(gate, 'kept'), *self._attached.get(name, ())],
                   units, optimizer)
        return True

    def fold(self, name: str, optimizer: Optimizer | None = None) -> None:
        """Multiply the mask of a decided site into its weights permanently."""
        site = self.sites[name]
        scale_axes([*site.axes(), *self._attached.get(name, ())], site.gate.scale(), optimizer)
        site.gate.fold()

    def apply_decisions(self, optimizer: Optimizer | None = None) -> bool:
        """Slice units that no option can keep and fold decided masks; outputs do not change.

        The optimizer's moments follow. Returns whether any tensor changed.
        """
        changed = False
        for name, gate in self._sliceable():
            # `supported` asks for all options alive in training, for the likeliest in eval mode
            mode, gate.training = gate.training, True
            supported = gate.supported()
            gate.training = mode
            kept = gate.kept if supported is None else gate.kept[supported]
            changed |= self._follow(name, kept, gate.decided, optimizer)
        return changed

    def apply_decisions_of(self, other: 'SearchSpace') -> None:
        """Slice and fold what another copy of this supernet has sliced and folded."""
        for name, gate in other._sliceable():
            self.sites[name].gate.alive.copy_(gate.alive)
            self._follow(name, gate.kept, bool(gate.folded))

    def _follow(self, name: str, kept: Tensor, decided: bool,
                optimizer: Optimizer | None = None) -> bool:
        """Slice a site, and fold its mask once it is decided; returns whether anything changed."""
        changed = self.slice_units(name, kept, optimizer)
        if decided and not self.sites[name].gate.folded:
            self.fold(name, optimizer)
            changed = True
        return changed

    def mask_like(self, other: 'SearchSpace') -> None:
        """Take the masks, noise included, from the gates of another supernet of the same sites.

        So a momentum copy averages the weights of a network, and has that network's channels.

        Raises:
            ValueError: Gates slice the network while it trains.
        """
        if self._sliceable():
            raise ValueError('expected gates that leave the tensors whole while they train (such '
                             f'as `mmkcr.GumbelChannelGate`) of a `{self.type_name}` with a '
                             'momentum copy, found some that slice them')
        leaders = other.gates()
        for name, gate in self.gates().items():
            gate.mask_like(leaders[name])

    def take_shape(self, state: Mapping[str, Tensor], prefix: str = '',
                   optimizer: Optimizer | None = None) -> bool:
        """Slice a supernet to the sizes of a state, of one that was sliced while it trained.

        The state, in which the backbone's keys begin with the prefix, is to be loaded afterwards.
        The optimizer's moments follow. Returns whether anything changed.
        """
        changed = False
        for name, gate in self._sliceable():
            kept = state.get(f'{prefix}{name}.gate.kept')
            if kept is None:
                continue
            kept = kept.to(gate.kept.device)
            # a state that cannot be reached by slicing is left as it is: `check_state` refuses it
            counts = self.sites[name].group_counts(kept)
            if torch.isin(kept, gate.kept).all() and len(counts) and (counts == counts[0]).all():
                changed |= self.slice_units(name, kept, optimizer)
            # the mask is in the weights that follow, so here only the gate is told
            if state[f'{prefix}{name}.gate.folded'] and not gate.folded:
                gate.fold()
                changed = True
        return changed

    def _sliceable(self) -> list[tuple[str, BaseGate]]:
        """Gates that slice their sites during training."""
        return [(name, gate) for name, gate in self.gates().items() if hasattr(gate, 'folded')]

    def sliced_params(self) -> int:
        """Parameters of the dense network that this supernet has lost by slicing."""
        gates = sum(map(count_params, self.gates().values()))
        return self._dense_params + gates - count_params(self.host) if self._sliceable() else 0

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
        if self.chosen:
            inherit_dense(self, state_dict, prefix)
        self.take_shape(state_dict, prefix)
        take_kept(self, state_dict, prefix)
        check_state(self, state_dict, prefix)


def class_of(host: nn.Module) -> dict[str, str]:
    """What structure files say of a host that no config describes."""
    return dict(type=f'{type(host).__module__}.{type(host).__qualname__}')


def described(backbone: Mapping[str, Any], kinds: Sequence[KindConfig]) -> dict[str, Any]:
    """What structure files say of a host, with its config, that has some kinds of site."""
    return copy.deepcopy(dict(type='mmkcr.Searchable', sites=list(kinds), backbone=backbone))


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
    """
    for space in search_spaces(model):
        if not is_of(space.host, 'mmkcr.models.searchable.SearchableBackbone'):
            space.leave()


def search_spaces(model: nn.Module) -> list[SearchSpace]:
    """Search spaces of all searchable modules in a model."""
    return [space for module in model.modules()
            if isinstance(space := getattr(module, 'search_space', None), SearchSpace)]

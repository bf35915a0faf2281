"""The three states of any backbone: dense, supernet, subnet."""

import copy
import dataclasses
import inspect
import warnings
from collections.abc import Collection, Mapping, Sequence
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
    """Sites of a host network, with their gates (supernet) or their kept units (subnet).

    The host keeps its class, its keys and its methods; this is its attribute ``search_space``.

    Args:
        host (nn.Module): The network; changed in place. Its attribute ``optional_keys``, if it has
            one, is a regular expression of the keys that a checkpoint may lack or have in excess,
            which is then logged: output norms, which depend on ``out_indices``.
        kinds (Sequence[str | dict]): Kinds of site, see :func:`~mmkcr.models.sites.find_sites`.
        backbone (dict, optional): Registered ``type`` and arguments that build the host, for
            structure files. Defaults to :func:`Searchable` of the host as its former search space
            describes it, or of its class without arguments.
        gates (dict, optional): Config of the gates without ``total``; or one config per kind, such
            as ``dict(heads=dict(type=...))``. Sites of kinds without a config are sliced as in
            ``structure``, or stay whole.
        structure (str | dict | Structure, optional): Structure file; or heads to replace,
            ``dict(blocks=[...])`` or ``dict(scores=<file>, replace=...)``, see
            :func:`~mmkcr.models.head_choice.choose_heads`, and then dense weights can be loaded.
        method (str): Name of the method, for structure files. Defaults to ``''``: those of the
            kinds.

    Raises:
        ValueError: A kind that the host does not have, ``gates`` and ``structure`` for one site, a
            structure of another backbone, or without ``backbone`` a host that is not dense.
    """

    def __init__(self, host: nn.Module, kinds: Sequence[KindConfig] = (),
                 backbone: Mapping[str, Any] | None = None,
                 gates: Mapping[str, Any] | None = None, structure: StructureLike = None,
                 method: str = '') -> None:
        former: SearchSpace | None = getattr(host, 'search_space', None)
        if backbone is None:
            inner = dict(type=f'{type(host).__module__}.{type(host).__qualname__}')
            if former is not None:
                if former.state_name() != 'dense':
                    raise ValueError(f'expected a dense backbone, found a {former.state_name()}')
                # a `Searchable` describes its host below `backbone`, a named class itself
                inner = former.backbone.get('backbone', former.backbone)
            backbone = dict(type='mmkcr.Searchable', sites=list(kinds), backbone=inner)
        self.host, self.kinds = host, tuple(kinds)
        self.backbone = copy.deepcopy(dict(backbone))
        self.structure: Structure | None = None
        #: Entries of the sites that are sliced for good: all of a subnet's.
        self.fixed: dict[str, SiteEntry] = {}
        self._attached: dict[str, list[Axis]] = {}
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
        if gates is not None or structure is not None or not self._sites:
            self.put_masks()
        #: Whether heads were chosen without a file: they may start from a dense network's weights.
        self.chosen = is_choice(structure)
        if structure is not None:
            self.slice_to(choose_heads(self, structure) if self.chosen else
                          Structure.load(structure), gates or ())
        if gates is not None:
            self._attach_gates(gates)
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

    def _attach_gates(self, gates: Mapping[str, Any]) -> None:
        """Put gates on the sites of all kinds that have a config."""
        from mmkcr.registry import MODELS  # of MMEngine, which only a search needs
        kinds = {site.kind for site in self.sites.values()}
        # one config for all, one per kind, or both: then a kind's entries override the common ones
        common = {key: value for key, value in gates.items() if key not in KINDS}
        # without a common `type` any other key could only be the name of a kind
        unknown = {*gates} - kinds - ({*common} if 'type' in common else set())
        if unknown or not gates:
            raise ValueError(f'expected `gates` with a `type`, or by kind among {sorted(kinds)}, '
                             f'found {sorted(gates)}')
        for site in self.sites.values():
            if not _has_config(site, gates):
                continue
            config = {**common, **gates.get(site.kind, {})}
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
            gate = MODELS.build({**defaults, **config, **grouped, 'total': site.total})
            # gates live where their site's weights do
            site.attach(gate.to(next(site.owner.parameters()).device))
        together = list(self.gates().values())
        for gate in together:  # some choose together, such as the k best of all
            gate.join(together)

    # ---- structures -----------------------------------------------------------------------------

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

        A digest of the kept units is put into the state, for strict loading. ``gates`` are the keys
        of a config of gates that are to follow: sites that get one stay whole, and only the rest of
        the structure has to fit. A subnet, and the structure of another backbone, are refused.
        """
        if self.structure is not None:
            raise ValueError('expected a dense backbone or a supernet to slice, found a subnet of '
                             f'`{self.type_name}`')
        gated = {name for name, site in self.sites.items() if _has_config(site, gates)}
        if gated == set(self.sites):
            raise ValueError('expected `gates` (supernet) or `structure` (subnet) of '
                             f'`{self.type_name}`, found both')
        entries = {name: entry for name, entry in structure.sites.items() if name not in gated}
        dataclasses.replace(structure, sites=entries).validate(
            {name: total for name, total in self.totals().items() if name not in gated},
            self._accepted_type(structure))
        device = next(self.host.parameters()).device
        for name, entry in self.fixed.items():  # before anything is sliced
            if entries.get(name, entry) != entry:
                raise ValueError(f'expected site `{name}` as the supernet has it, found another in '
                                 'the structure')
        for name, entry in entries.items():
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
                self.slice_units(name, kept, True)
            site.slice_to(kept, entry.operator)
        self.fixed = entries
        self.host.register_buffer(KEPT, digest(entries).to(device))
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

    def fold_fixed(self) -> None:
        """Give heads that a structure replaced, beside sites with gates, plain weights."""
        self.fixed = {name: self.sites[name].fold(entry) if entry.operator else entry
                      for name, entry in self.fixed.items()}

    # ---- slicing while it trains (Once for Both, section 3.3) -----------------------------------

    def attach_axis(self, name: str, axis: Axis) -> None:
        """Let a parameter outside the host, such as a mask token, be sliced with a gated site."""
        self._attached.setdefault(name, []).append(axis)

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
            changed |= self.slice_units(name, kept, gate.decided, optimizer)
        return changed

    def apply_decisions_of(self, other: 'SearchSpace') -> None:
        """Slice and fold what another copy of this supernet has sliced and folded."""
        for name, gate in other._sliceable():
            self.sites[name].gate.alive.copy_(gate.alive)
            self.slice_units(name, gate.kept, bool(gate.folded))

    def slice_units(self, name: str, kept: Tensor, decided: bool = False,
                    optimizer: Optimizer | None = None) -> bool:
        """Slice a site and its gate, and fold its mask into the weights once it is decided.

        Returns whether anything changed; see :meth:`~mmkcr.core.Site.slice_units`.
        """
        site, attached = self.sites[name], self._attached.get(name, ())
        sliced, folds = len(kept) < site.gate.present, decided and not site.gate.folded
        if sliced:
            units = site.slice_units(kept, optimizer)
            # axes along the units of the gate's own parameters and buffers, and attached axes
            slice_axes([Axis(site.gate, 'importance'), Axis(site.gate, 'kept'), *attached],
                       units, optimizer)
        if folds:
            scale_axes([*site.axes(), *attached], site.gate.scale(), optimizer)
            site.gate.fold()
        return sliced or folds

    def mask_like(self, other: 'SearchSpace') -> None:
        """Take the masks, noise included, from the gates of another supernet of the same sites.

        So a momentum copy has the channels of the network that it averages. Gates that slice the
        network while it trains are refused.
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
                changed |= self.slice_units(name, kept, optimizer=optimizer)
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


def _has_config(site: HostSite, gates: Collection[str]) -> bool:
    """Whether a config of gates, here its keys, has one for a site."""
    return 'type' in gates or site.kind in gates


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
                any(site.kind == 'head_operator' or site.kind == 'embedding' and
                    site.present < site.total for site in sites):
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
    return [space for module in model.modules()
            if isinstance(space := getattr(module, 'search_space', None), SearchSpace)]

"""The three states of a searchable backbone: dense, supernet, subnet."""

import copy
import dataclasses
import inspect
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

import torch
from torch import Tensor, nn

from mmkcr.core import Site, Structure, searchable_layers
from mmkcr.core.added import added_layers
from mmkcr.models.gates import BaseGate
from mmkcr.registry import MODELS
from .pretrained import load_pretrained, split_pretrained


class SearchableBackbone:
    """Mixin that gives a host backbone searchable dimensions.

    Put it before the host class. Without arguments the class *is* the host
    class, key for key. With ``gates`` it is the supernet: a gate at every
    site, and otherwise the same keys. With ``structure`` it is the subnet: the
    same modules at their kept sizes.

    A subclass says where its sites are (:meth:`_find_sites`), how one is gated
    (:meth:`_gate_site`) and how it is sliced (:meth:`_slice_site`). A sliced site
    holds its kept units in a buffer ``kept``, so that a checkpoint of another
    structure is refused even where the shapes agree.

    Args:
        *args: The host backbone's arguments.
        gates (dict, optional): Config of the gates without ``total``, such as
            ``dict(type='mmkcr.GumbelChannelGate')``; or one for each kind of site,
            ``dict(ffn=dict(type=...))``, the kind being the last part of its
            name. Sites of other kinds are as in ``structure``, or whole.
        structure (str | dict | Structure, optional): Structure file.
        **kwargs: The host backbone's arguments.

    Raises:
        ValueError: Both ``gates`` and ``structure`` for one site, a backbone
            without sites, or a structure of another backbone.
    """

    #: Name of the method, written to structure files.
    method: str = ''
    #: Keys that a checkpoint may lack or have in excess: output norms, which
    #: depend on ``out_indices``.
    optional_keys: str = r'$^'
    #: Gates that have learned nothing, for sizes before a search.
    unlearned_gates: Mapping[str, Any] = dict(type='mmkcr.GumbelChannelGate')

    def __init__(self,
                 *args: Any,
                 gates: Optional[Mapping[str, Any]] = None,
                 structure: Union[str, Mapping, Structure, None] = None,
                 **kwargs: Any) -> None:
        kwargs = {key: list(value) if key == 'out_indices' and isinstance(value, tuple) else value
                  for key, value in kwargs.items()}
        self._host_args = self._non_default_args(args, kwargs)
        self._check_arch(self._host_args.get('arch'))
        super().__init__(*args, **kwargs)
        self._plain_drop_rates()
        self._prepare(gates is not None or structure is not None)
        self.structure: Optional[Structure] = None
        self._fixed: Dict[str, Site] = {}
        self._gated = False
        configs = {} if gates is None else self._gate_configs(gates)
        if structure is not None:
            self._take_structure(Structure.load(structure), configs)
        if configs:
            self._add_gates(configs)
        self._register_load_state_dict_pre_hook(self._check_state)

    def _non_default_args(self, args: tuple, kwargs: Dict[str, Any]) -> Dict[str, Any]:
        host = next(cls for cls in type(self).__mro__
                    if '__init__' in vars(cls) and not issubclass(cls, SearchableBackbone))
        given = inspect.signature(host.__init__).bind(self, *args, **kwargs).arguments
        return copy.deepcopy({key: value for key, value in given.items()
                              if key not in ('self', 'init_cfg')})

    def _check_arch(self, arch: Any) -> None:
        if isinstance(arch, str) and arch.lower() not in self.arch_zoo:
            raise ValueError(f'expected `arch` of `{self.__class__.__name__}` among '
                             f'{sorted(self.arch_zoo)}, found {arch!r}')

    def _plain_drop_rates(self) -> None:
        """Python numbers for NumPy's, which break the graph of ``torch.compile``."""
        for module in self.modules():
            if hasattr(module, 'drop_prob'):
                module.drop_prob = float(module.drop_prob)

    def _prepare(self, searchable: bool) -> None:
        """Change the host's modules before they are gated or sliced.

        Args:
            searchable (bool): Whether the backbone becomes a supernet or a subnet.
        """

    def _find_sites(self) -> Dict[str, int]:
        """Width of every site, by module path."""
        raise NotImplementedError

    def _gate_site(self, site: str, gate: BaseGate) -> None:
        """Put a gate at a site of the dense backbone."""
        raise NotImplementedError

    def _slice_site(self, site: str, kept: Tensor) -> None:
        """Slice a dense or gated site to the kept units, without its gate."""
        raise NotImplementedError

    def sites(self) -> Dict[str, int]:
        """Units of every site of the dense backbone, by module path.

        Raises:
            ValueError: The backbone has no site.
        """
        found = self._find_sites()
        if not found:
            raise ValueError(f'expected a `{self.__class__.__name__}` with searchable layers, '
                             f'found none with the arguments {self._host_args}')
        return found

    def gates(self) -> Dict[str, BaseGate]:
        """The gates of a supernet by site; empty in the other states."""
        return {name: layer.gate for name, layer in searchable_layers(self).items()}

    def sliced_params(self) -> int:
        """Parameters that the dense backbone has and a supernet sliced while it trains has lost."""
        return 0

    def _gate_configs(self, gates: Mapping[str, Any]) -> Dict[str, Mapping[str, Any]]:
        """Config of the gate of every site that has one."""
        sites = self.sites()
        if 'type' in gates:
            return dict.fromkeys(sites, gates)
        kinds = {site: site.split('.')[-1] for site in sites}
        unknown = sorted(set(gates) - set(kinds.values()))
        if unknown or not gates:
            raise ValueError(f'expected `gates` with a `type`, or by kind among '
                             f'{sorted(set(kinds.values()))}, found {sorted(gates)}')
        return {site: gates[kind] for site, kind in kinds.items() if kind in gates}

    def _take_structure(self, structure: Structure, gated: Mapping[str, Any]) -> None:
        """Become the subnet, or fix the sites that have no gate beside those that have.

        For the latter a structure of a parent class, which lacks the gated sites, will do.
        """
        if not gated:
            self.slice_to(structure)
            return
        if set(gated) == set(self.sites()):
            raise ValueError(f'expected `gates` (supernet) or `structure` (subnet) of '
                             f'`{self.__class__.__name__}`, found both')
        found = structure.backbone['type'].split('.')[-1]
        parents = {cls.__name__ for cls in type(self).__mro__}
        fixed = {name: site for name, site in structure.sites.items() if name not in gated}
        dataclasses.replace(structure, sites=fixed).validate(
            {name: total for name, total in self.sites().items() if name not in gated},
            found if found in parents else self.__class__.__name__)
        for name, site in fixed.items():
            self._slice(name, site)
        self._fixed = fixed

    def _add_gates(self, configs: Mapping[str, Mapping[str, Any]]) -> None:
        sites, gates = self.sites(), []
        for site, config in configs.items():
            gate = MODELS.build(dict(config, total=sites[site]))
            gate.site = site
            self._gate_site(site, gate)
            gates.append(gate)
        for gate in gates:
            gate.join(gates)
        self._gated = True

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """See the host backbone; of images channels first, maps are channels first too.

        Operators of mmcv such as ``RoIAlign`` read maps as if they were, and boxes are then wrong
        without an error.
        """
        if self.training and self._gated:
            for gate in self.gates().values():
                gate.refresh()
        outs = super().forward(x, *args, **kwargs)
        return _channels_first(outs) if x.is_contiguous() else outs

    def slice_to(self, structure: Structure) -> None:
        """Slice the dense backbone or the supernet to a structure, in place.

        Weights are inherited: the kept entries stay as they are.

        Args:
            structure (Structure): Of this backbone.

        Raises:
            ValueError: The structure belongs to another backbone, or this one
                is a subnet already.
        """
        if self.structure is not None:
            raise ValueError(f'expected a dense backbone or a supernet to slice, found a subnet '
                             f'of `{self.__class__.__name__}`')
        structure.validate(self.sites(), self.__class__.__name__)
        for name, site in structure.sites.items():
            if name not in self._fixed:
                self._slice(name, site)
            elif site != self._fixed[name]:
                raise ValueError(f'expected site `{name}` as the supernet has it, found another in '
                                 f'the structure')
        self.structure, self._gated = structure, False

    def _slice(self, name: str, site: Site) -> None:
        if site.operator is None:
            self._slice_site(name, self._index(site.kept))
        elif site.operator in self._operators(name):
            self._slice_site(name, self._index(site.kept), site.operator)
        else:
            raise ValueError(f'expected an `operator` among {sorted(self._operators(name))} at '
                             f'site `{name}`, found `{site.operator}`')

    def _operators(self, site: str) -> Sequence[str]:
        """What may compute the units of a site that are not kept, the default first."""
        return ()

    def _index(self, kept: List[int]) -> Tensor:
        parameter = next(self.parameters())
        return parameter.new_tensor(kept).long()

    def structure_for(self, kept: Mapping[str, Tensor]) -> Structure:
        """Structure of this backbone with the given units, all of a site that is not given."""
        backbone = dict(type=f'mmkcr.{self.__class__.__name__}', **self._host_args)
        sites = {}
        for name, total in self.sites().items():
            units = kept[name].tolist() if name in kept else list(range(total))
            replaced = len(units) < total and self._operators(name)
            sites[name] = dict(total=total, kept=units, operator=replaced[0] if replaced else None)
        sites.update({name: site.to_dict() for name, site in self._fixed.items()})
        return Structure.load(dict(format_version=1, method=self.method, backbone=backbone,
                                   sites=sites))

    def init_weights(self) -> None:
        """Initialise as the host does; a checkpoint of ``Pretrained`` is loaded whole or refused.

        MMEngine's own ``Pretrained`` warns of what does not fit and goes on.

        Raises:
            FileNotFoundError: The checkpoint is not there.
            ValueError: It holds no backbone, or another one; the message lists
                missing, unexpected and mis-shaped keys.
        """
        pretrained, others = split_pretrained(self.init_cfg)
        if pretrained is None or self.is_init:
            super().init_weights()
            return
        kept, self.init_cfg = self.init_cfg, others
        try:
            super().init_weights()
            load_pretrained(self, **pretrained)
        finally:
            self.init_cfg = kept

    def _check_state(self, state_dict: Dict[str, Tensor], prefix: str, *_: Any) -> None:
        """Refuse a state_dict that would load only in part.

        A supernet may be loaded from a dense checkpoint: it keeps its gates and
        the layers that it has in excess.
        """
        found = {key[len(prefix):]: value.shape for key, value in state_dict.items()
                 if key.startswith(prefix)}
        if not found:
            return
        own = {key: value.shape for key, value in nn.Module.state_dict(self).items()}
        gates = tuple(f'{site}.gate.' for site in self.gates())
        gates += tuple(f'{name}.' for name in added_layers(self)) if gates else ()
        optional = re.compile(self.optional_keys)
        missing = [key for key in own if key not in found and not optional.match(key)
                   and not key.startswith(gates)]
        surplus = [key for key in found if key not in own and not optional.match(key)]
        shaped = [f'{key} {tuple(found[key])} for {tuple(own[key])}' for key in own
                  if key in found and own[key] != found[key]]
        if missing or surplus or shaped:
            error = ValueError(
                f'expected a checkpoint of the {self._state_name()} `{self.__class__.__name__}`, '
                f'found {_listing("missing", missing)}, {_listing("unexpected", surplus)} and '
                f'{_listing("mis-shaped", shaped)} keys below `{prefix or "."}`')
            for kind, keys in (('missing', missing), ('unexpected', surplus),
                               ('mis-shaped', shaped)):
                error.add_note('\n'.join([f'{kind}:', *keys]))  # all of them, with --debug
            raise error
        for site in self._fixed if self.structure is None else self.structure.sites:
            ours, theirs = self.get_buffer(f'{site}.kept'), state_dict[f'{prefix}{site}.kept']
            if not torch.equal(ours.cpu(), theirs.cpu()):
                raise ValueError(f'expected a checkpoint of the subnet in the structure, found '
                                 f'other kept units at site `{site}`')

    def _state_name(self) -> str:
        if self.structure is not None:
            return 'subnet'
        return 'supernet' if self.gates() else 'dense'


def _channels_first(outs: Any) -> Any:
    if isinstance(outs, Tensor):
        return outs.contiguous() if outs.ndim == 4 else outs
    return type(outs)(map(_channels_first, outs)) if isinstance(outs, (list, tuple)) else outs


def _listing(kind: str, keys: List[str]) -> str:
    shown = ', '.join(keys[:3]) + (', ...' if len(keys) > 3 else '')
    return f'{len(keys)} {kind}' + (f' ({shown})' if keys else '')

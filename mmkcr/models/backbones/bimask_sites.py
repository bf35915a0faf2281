"""Width, attention and MLP of a transformer as sites that are sliced while it trains (OFB)."""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmkcr.core import Member, count_params, scale_members, slice_members
from mmkcr.models.gates import BiMaskGate
from mmkcr.models.layers.selection import put
from .searchable import SearchableBackbone


class BiMaskSite(NamedTuple):
    """What a backbone says about one of its sites.

    Args:
        total (int): Units of the dense dimension.
        kind (str): Key of the search space: ``'width'``, ``'attn'`` or ``'ffn'``.
        groups (int): Heads, or 1. Units are group by group. Defaults to 1.
    """

    total: int
    kind: str
    groups: int = 1


class BiMaskSites(SearchableBackbone):
    """Backbones whose sites carry a :class:`~mmkcr.models.gates.BiMaskGate`.

    A backbone of this method says four things, and every stage follows from
    them: the search, slicing as it goes, resuming, slimming, the subnet.

    - :meth:`_describe_sites`: its sites, by the path of the layer that gets
      the gate. The units of ``layers.3.attn`` are channels of heads, head by
      head (unit ``h * width + c``); a selection keeps equally many of every
      head that it keeps. The gate of a residual width sits at the layer that
      embeds or merges patches.
    - :meth:`_members`: the parameters that a site's units lie along
      (:class:`~mmkcr.core.Member`), of whatever state the backbone is
      in. ``folds`` marks those that the mask multiplies; together they must
      scale the unit's value exactly once.
    - :meth:`_gate_site` and :meth:`_ungate_site`: exchange the host's layers
      for gated ones and back. Where a gate is shared by other layers (norms of
      the residual stream) these hold it in a tuple, not as a child.
    - :meth:`_resize`: attributes that no weight shows, such as heads.

    Cost: the gated layer's ``macs(size, input_shape, **coupled)`` with
    ``couplings`` such as ``dict(width='patch_embed')``.

    Output: feature maps keep the dense width, with 0 at dropped channels, so
    that heads and necks are those of the dense model.
    """

    method = 'ofb'
    #: Site of the width that patches are embedded in.
    embedding_site = 'patch_embed'
    unlearned_gates = dict(type='mmkcr.BiMaskGate', init='uniform')

    #: Options of every kind of site, see :class:`BiMaskGate` (SPEC 3, table 1).
    search_space: Mapping[str, Mapping[str, float]] = dict(
        width=dict(start=1 / 2, step=1 / 32),
        attn=dict(start=1 / 4, step=1 / 8, group_step=2),
        ffn=dict(start=1 / 4, step=1 / 8))

    def _describe_sites(self) -> Dict[str, BiMaskSite]:
        """Sites of the dense backbone, in forward order."""
        raise NotImplementedError

    def _members(self, site: str) -> List[Member]:
        """Parameters along a site's units, without those of its gate."""
        raise NotImplementedError

    def _ungate_site(self, site: str) -> None:
        """Give a gated site's layers back to the host's classes."""
        raise NotImplementedError

    def _resize(self, site: str, groups: int, units: int) -> None:
        """Set what no weight shows after slicing to ``units`` units in ``groups`` groups."""

    # ---- sites and gates ------------------------------------------------------------------------

    def site_descriptions(self) -> Dict[str, BiMaskSite]:
        """Sites of the dense backbone, whatever state this one is in."""
        if not hasattr(self, '_dense_sites'):
            self._dense_sites = self._describe_sites()
        return self._dense_sites

    def _find_sites(self) -> Dict[str, int]:
        return {name: site.total for name, site in self.site_descriptions().items()}

    def _gate_configs(self, gates: Mapping[str, Any]) -> Dict[str, Mapping[str, Any]]:
        if 'type' not in gates:
            raise ValueError(f'expected `gates` of `{self.__class__.__name__}` with a `type`, for '
                             f'all of its sites, found {sorted(gates)}')
        gates = dict(gates)
        own = {kind: gates.pop(kind, {}) for kind in self.search_space}
        return {name: {**gates, **self.search_space[site.kind], **own[site.kind],
                       'groups': site.groups}
                for name, site in self.site_descriptions().items()}

    def _add_gates(self, configs: Mapping[str, Mapping[str, Any]]) -> None:
        self._dense_params = count_params(self)
        super()._add_gates(configs)

    def sliced_params(self) -> int:
        """Parameters that the dense backbone has and this supernet has lost by now."""
        gates = sum(map(count_params, self.gates().values()))
        return self._dense_params + gates - count_params(self) if gates else 0

    def attach_member(self, site: str, member: Member) -> None:
        """Let a parameter outside of the backbone follow a gated site, such as a mask token.

        Args:
            site (str): Its name.
            member (Member): The parameter.
        """
        self._attached = {**self._attached, site: [*self._attached.get(site, ()), member]}

    _attached: Mapping[str, List[Member]] = {}

    def gate_members(self, site: str) -> List[Member]:
        """Parameters along a gated site's units, with attached ones and those of its gate."""
        gate = self.gates()[site]
        return [*self._members(site), *self._attached.get(site, ()), Member(gate, 'importance'),
                Member(gate, 'kept')]

    # ---- slicing as it goes ---------------------------------------------------------------------

    def slice_units(self, site: str, kept: Tensor, optimizer: Optional[Optimizer] = None) -> bool:
        """Slice a site of a supernet, its gate and the optimizer's moments.

        Args:
            site (str): Its name.
            kept (Tensor): Original indices to keep, ascending, among those
                that are still there.
            optimizer (Optimizer, optional): Whose moments are sliced alike.

        Returns:
            bool: Whether anything changed.
        """
        gate: BiMaskGate = self.gates()[site]
        if len(kept) == gate.present:
            return False
        units = torch.isin(gate.kept, kept.to(gate.kept.device)).nonzero().flatten()
        slice_members(self.gate_members(site), units, optimizer)
        self._resize(site, *self._arranged(site, gate.kept))
        return True

    def fold_site(self, site: str, optimizer: Optional[Optimizer] = None) -> None:
        """Multiply the mask of a decided site into its weights, for good."""
        gate: BiMaskGate = self.gates()[site]
        scale_members(self.gate_members(site), gate.scale(), optimizer)
        gate.fold()

    def settle(self, optimizer: Optional[Optimizer] = None) -> bool:
        """Slice what no option can keep and fold what is decided; the output stays as it is.

        Returns:
            bool: Whether any tensor changed.
        """
        changed = False
        for site, gate in self.gates().items():
            mode, gate.training = gate.training, True
            supported = gate.supported()
            gate.training = mode
            if supported is not None:
                changed |= self.slice_units(site, gate.kept[supported], optimizer)
            if gate.decided and not gate.folded:
                self.fold_site(site, optimizer)
                changed = True
        return changed

    def settle_like(self, other: 'BiMaskSites') -> None:
        """Follow another copy of this supernet, such as the one whose average this is."""
        for site, gate in other.gates().items():
            self.slice_units(site, gate.kept)
            self.gates()[site].alive.copy_(gate.alive)
            if gate.folded and not self.gates()[site].folded:
                self.fold_site(site)

    def adopt(self, state: Mapping[str, Tensor], prefix: str = '',
              optimizer: Optional[Optimizer] = None) -> bool:
        """Slice a supernet to the sizes of a state_dict that is to be loaded.

        Args:
            state (Mapping[str, Tensor]): Of a supernet of this backbone that
                was sliced while it trained.
            prefix (str): Of the backbone's keys. Defaults to ''.
            optimizer (Optimizer, optional): That holds this backbone's parameters.

        Returns:
            bool: Whether anything changed.
        """
        changed = False
        for site, gate in self.gates().items():
            kept = state.get(f'{prefix}{site}.gate.kept')
            if kept is None:
                continue
            inside = torch.isin(kept.to(gate.kept.device), gate.kept)
            if inside.all() and self._is_arranged(site, kept):
                changed |= self.slice_units(site, kept, optimizer)
            if state[f'{prefix}{site}.gate.folded'] and not gate.folded:
                gate.fold()
                changed = True
        return changed

    def _check_state(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        self.adopt(state_dict, prefix)
        super()._check_state(state_dict, prefix, *args)

    # ---- the subnet -----------------------------------------------------------------------------

    def _slice_site(self, site: str, kept: Tensor) -> None:
        if not self._is_arranged(site, kept):
            raise ValueError(f'expected equally many channels of every head at site `{site}`, '
                             f'found {len(kept)} in other numbers')
        if site in self.gates():
            self.slice_units(site, kept)
            self.fold_site(site)
            self._ungate_site(site)
        else:
            slice_members(self._members(site), kept)
        self._resize(site, *self._arranged(site, kept))
        self.get_submodule(site).register_buffer('kept', kept.clone())

    def _counts(self, site: str, kept: Tensor) -> Tensor:
        description = self.site_descriptions()[site]
        heads = kept // (description.total // description.groups)
        return torch.unique(heads, return_counts=True)[1]

    def _is_arranged(self, site: str, kept: Tensor) -> bool:
        counts = self._counts(site, kept)
        return len(counts) > 0 and bool((counts == counts[0]).all())

    def _arranged(self, site: str, kept: Tensor) -> tuple:
        return len(self._counts(site, kept)), len(kept)

    # ---- output ---------------------------------------------------------------------------------

    def widen(self, x: Tensor, site: str, dim: int = -1) -> Tensor:
        """Channels of a residual stream at their places in the dense width, 0 elsewhere.

        Args:
            x (Tensor): With the channels present along ``dim``.
            site (str): Of the width.
            dim (int): Of the channels. Defaults to -1.
        """
        layer = self.get_submodule(site)
        gate: Optional[BiMaskGate] = getattr(layer, 'gate', None)
        kept = getattr(layer if gate is None else gate, 'kept', None)
        if gate is not None and gate.supported() is not None:
            shape = [1] * x.ndim
            shape[dim] = -1
            x = x * gate.supported().view(shape)
        total = self.site_descriptions()[site].total
        return x if kept is None or len(kept) == total else put(x, kept, total, dim)

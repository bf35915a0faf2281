"""Gates on the sites of a supernet, from a config."""

from collections.abc import Collection, Mapping
from typing import Any

from mmkcr.core import BaseGate
from .sites.base import KINDS, HostSite


def has_gate_config(site: HostSite, gates: Collection[str]) -> bool:
    """Whether a config of gates, of which ``gates`` may be the keys alone, is about a site."""
    return 'type' in gates or site.kind in gates


def attach_gates(sites: Mapping[str, HostSite], gates: Mapping[str, Any]) -> None:
    """Put gates on the sites of all kinds that have a config.

    Args:
        sites (Mapping[str, HostSite]): By name.
        gates (Mapping): One config for all sites, without ``total``; or a config by kind, such as
            ``dict(heads=dict(type=...))``; or both, where the entries of a kind override the
            common ones.

    Raises:
        ValueError: No config, one of an unknown kind, or gates that would keep other numbers of
            units in different heads.
    """
    kinds = {site.kind for site in sites.values()}
    common = {key: value for key, value in gates.items() if key not in KINDS}
    # without a common `type` any other key could only be the name of a kind
    unknown = {*gates} - kinds - ({*common} if 'type' in common else set())
    if unknown or not gates:
        raise ValueError(f'expected `gates` with a `type`, or by kind among {sorted(kinds)}, '
                         f'found {sorted(gates)}')
    gated = [site for site in sites.values() if has_gate_config(site, gates)]
    for site in gated:
        # gates live where their site's weights do
        gate = _build_gate(site, {**common, **gates.get(site.kind, {})})
        site.attach(gate.to(next(site.owner.parameters()).device))
    together = [site.gate for site in gated]
    for gate in together:  # some choose together, such as the k best of all
        gate.join(together)


def _build_gate(site: HostSite, config: Mapping[str, Any]) -> BaseGate:
    from mmkcr.registry import MODELS  # of MMEngine, which only a search needs
    cls = MODELS.get(config['type']) or BaseGate  # an unknown type is refused below
    if cls is not BaseGate and site.rows > 1 and not cls.grouped:
        # the selection would be refused after the search
        raise ValueError('expected gates that keep equally many units of every head at sites of '
                         f'kind `{site.kind}`, such as `mmkcr.BiMaskGate`, found '
                         f'`{config["type"]}`; sites of kind `heads` take any gate')
    groups = {'groups': site.groups} if cls.grouped else {}
    return MODELS.build({**cls.space.get(site.kind, {}), **config, **groups, 'total': site.total})

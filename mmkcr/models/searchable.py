"""Backbones as configs name them: any host by :func:`Searchable`, named classes by a mixin."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.registry import MODELS as ROOT_MODELS
from torch import nn

from mmkcr.core import BaseGate, Structure
from mmkcr.lazy import is_of
from mmkcr.registry import MODELS
from .backbone_loading import load_pretrained, split_pretrained
from .counting import check_recorded, dense_counts
from .head_choice import choose_heads, is_choice
from .search_space import SearchSpace, StructureLike
from .sites.base import KindConfig


class SearchableBackbone:
    """Mixin before a host class: the host with some kinds of site, under its own name.

    Without arguments the class *is* the host class, key for key. With ``gates`` it is the
    supernet, with ``structure`` the subnet: the same modules at their kept sizes.

    Args:
        gates (dict, optional): See :func:`~mmkcr.models.gating.attach_gates`. Sites of kinds
            without a config are sliced as in ``structure``, or stay whole. Defaults to None.
        structure (str | dict | Structure, optional): Structure file; or heads to replace,
            ``dict(blocks=[...])`` or ``dict(scores=<file>, replace=...)``, see
            :func:`~mmkcr.models.head_choice.choose_heads`, and then dense weights can be loaded.
            Defaults to None.
        *args, **kwargs: The host backbone's arguments.

    Raises:
        ValueError: As in :class:`SearchSpace`, its ``attach_gates`` and ``slice_to``; an unknown
            ``arch``; or ``gates`` and ``structure`` for one site.
    """

    #: Kinds of site of the class, see :class:`~mmkcr.models.search_space.SearchSpace`.
    kinds: Sequence[KindConfig] = ()
    #: Name of the method, written to structure files.
    method: str = ''
    #: Gates that have learned nothing, for sizes before a search.
    unlearned_gates: Mapping[str, Any] = dict(type='mmkcr.GumbelChannelGate')

    def __init__(self, *args: Any, gates: Mapping[str, Any] | None = None,
                 structure: StructureLike = None, **kwargs: Any) -> None:
        # some hosts replace negative entries in place, which a tuple would refuse
        kwargs = {key: list(value) if key == 'out_indices' and isinstance(value, tuple) else value
                  for key, value in kwargs.items()}
        arguments = self._bind_arguments(args, kwargs)
        arch = arguments.get('arch')
        if isinstance(arch, str) and arch.lower() not in self.arch_zoo:
            raise ValueError(f'expected `arch` of `{type(self).__name__}` among '
                             f'{sorted(self.arch_zoo)}, found {arch!r}')
        super().__init__(*args, **kwargs)
        registered = dict(type=f'mmkcr.{type(self).__name__}', **arguments, **self._own_arguments())
        _take_sites(self, self.kinds, registered, gates, structure, self.method)

    def _bind_arguments(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The host's arguments by name."""
        # the first `__init__` of the MRO behind our mixins: its signature names the arguments
        host = next(cls for cls in type(self).__mro__
                    if '__init__' in vars(cls) and not issubclass(cls, SearchableBackbone))
        given = inspect.signature(host.__init__).bind(self, *args, **kwargs).arguments
        arguments = {**given, **given.get('kwargs', {})}
        if 'args' in given:  # a host with `*args`, whose parent takes `arch` first
            arguments['arch'] = given['args'][0]
        names = ('self', 'init_cfg', 'args', 'kwargs')
        return copy.deepcopy({key: value for key, value in arguments.items() if key not in names})

    def _own_arguments(self) -> dict[str, Any]:
        """Arguments that the host does not have, if they differ from their defaults."""
        return {}

    @classmethod
    def masks_of(cls, backbone: Mapping[str, Any]) -> list[KindConfig]:
        """Kinds of site, masks on queries and keys, of a backbone with this config; none here."""
        return []

    def gates(self) -> dict[str, BaseGate]:
        """The gates of a supernet, by site."""
        return self.search_space.gates()

    def init_weights(self) -> None:
        """Initialise as the host does, but load a ``Pretrained`` checkpoint strictly.

        MMEngine's own only warns of entries that do not fit; see
        :func:`~mmkcr.models.backbone_loading.load_pretrained` for errors.
        """
        pretrained, others = split_pretrained(self.init_cfg)
        if pretrained is None or self.is_init:
            super().init_weights()
            return
        # `super` applies the other initialisers; the checkpoint is loaded over them, strictly
        kept, self.init_cfg = self.init_cfg, others
        try:
            super().init_weights()
            load_pretrained(self, **pretrained)
        finally:
            self.init_cfg = kept


@MODELS.register_module()
def Searchable(backbone: Mapping[str, Any] | nn.Module, sites: Sequence[KindConfig],
               gates: Mapping[str, Any] | None = None, structure: StructureLike = None,
               **arguments: Any) -> nn.Module:
    """Give any backbone of the host libraries kinds of site: dense, supernet or subnet.

    The returned module is the host's own, with an attribute ``search_space``.

    Args:
        backbone (dict | nn.Module): Config of the backbone, or the module itself.
        sites (Sequence[str | dict]): Kinds of site, such as ``('mlp_channels', 'heads')``, see
            :func:`~mmkcr.models.sites.find_sites`.
        gates, structure: See :class:`SearchableBackbone`.
        **arguments: Merged into the backbone's config. Inheriting configs can so change single
            arguments, such as ``out_indices``. A ``data_preprocessor`` of the config stays, as the
            runner passes the run's.

    Raises:
        ValueError: As in :class:`SearchableBackbone`.
    """
    described = None  # a module describes itself
    if not isinstance(backbone, nn.Module):
        if 'data_preprocessor' in backbone:
            arguments.pop('data_preprocessor', None)
        config = dict(backbone, **arguments)
        recorded = {key: value for key, value in config.items() if key != 'init_cfg'}
        described = dict(type='mmkcr.Searchable', sites=list(sites), backbone=recorded)
        backbone = ROOT_MODELS.build(config)
    _take_sites(backbone, sites, described, gates, structure)
    return backbone


def _take_sites(host: nn.Module, kinds: Sequence[KindConfig], described: Mapping[str, Any] | None,
                gates: Mapping[str, Any] | None, structure: StructureLike,
                method: str = '') -> None:
    """Give a host its search space, and compare it with the record in its structure.

    Args:
        host (nn.Module): Dense; changed in place.
        kinds (Sequence[str | dict]): Kinds of site.
        described (Mapping, optional): Config of the host, see :class:`SearchSpace`.
        gates, structure: See :class:`SearchableBackbone`.
        method (str): See :class:`SearchSpace`. Defaults to ''.
    """
    for module in host.modules():  # numbers of NumPy break the graph of `torch.compile`
        if hasattr(module, 'drop_prob') and isinstance(module.drop_prob, (int, float)):
            module.drop_prob = float(module.drop_prob)
    dense = None if gates else dense_counts(host, structure)
    space = SearchSpace(host, kinds, described, method)
    if gates is not None or structure is not None:
        space.put_masks()
    if structure is not None:
        space.inherits_dense = is_choice(structure)
        if space.inherits_dense:
            structure = space.structure_for(choose_heads(space.sites, structure))
        space.slice_to(Structure.load(structure), gates or ())
    if gates is not None:
        space.attach_gates(gates)
    # a whole model has its own head; around a backbone it may be another
    task_model = host if is_of(host, 'mmengine.model.BaseModel') else None
    check_recorded(host, space.structure, task_model, dense)

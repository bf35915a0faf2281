"""Sites: the searchable dimensions of a network.

A *kind* of site (``mlp_hidden``, ``heads`` ...) is written once and finds its sites in any host
network that has an adapter. A site knows which axes of which tensors its units lie along, and
where a mask on its units acts. Gates, budget, slicing and the structure file need nothing else.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from .axes import Axis, slice_axes
from .gate import BaseGate

Cost = Any  # an int for ints, a differentiable scalar for tensors


class SiteHolder(nn.Identity):
    """The sub-module that a site adds to its host module, under the name of its kind.

    It holds the ``gate`` of a supernet.
    """

    def __init__(self, gate: BaseGate) -> None:
        super().__init__()
        self.gate = gate


class MaskPoint(NamedTuple):
    """Where a site's mask multiplies the first input or output of a module.

    Args:
        module (nn.Module): The module.
        side (str): ``'input'`` or ``'output'``.
        dim (int): Dimension of the units in the tensor. Defaults to -1.
        repeats, inner (int): As of :class:`~mmkcr.core.Axis`. Default to 1.
    """

    module: nn.Module
    side: str
    dim: int = -1
    repeats: int = 1
    inner: int = 1

    def mask(self, gate: BaseGate, x: Tensor) -> Tensor:
        """``x`` times the mask of the present units."""
        mask = gate().to(x.dtype).repeat_interleave(self.inner).repeat(self.repeats)
        trailing = x.ndim - 1 - self.dim if self.dim >= 0 else -1 - self.dim
        return x * mask.view(-1, *[1] * trailing)

    def attach(self, gate: BaseGate) -> Any:
        """Register the hook; returns its handle."""
        if self.side == 'input':
            return self.module.register_forward_pre_hook(partial(self._before, gate))
        return self.module.register_forward_hook(partial(self._after, gate))

    def _before(self, gate: BaseGate, _: nn.Module, args: tuple) -> tuple:
        return (self.mask(gate, args[0]), *args[1:])

    def _after(self, gate: BaseGate, _: nn.Module, args: tuple, out: Any) -> Any:
        if isinstance(out, tuple):
            return (self.mask(gate, out[0]), *out[1:])
        return self.mask(gate, out)


class Unsupported(ValueError):
    """A kind of site that a module does not offer; the message is the reason."""


class Site:
    """One searchable dimension of one module of a host network.

    Args:
        host (nn.Module): The network.
        path (str): Path within ``host`` of the module that the site belongs to.
        total (int): Units of the dense dimension.
        groups (int): Number of consecutive groups of units (heads). Defaults to 1.
    """

    #: Name of the kind, as in configs and as the last part of a site's name.
    kind: ClassVar[str] = ''
    #: Whether a gate selects units; a kind without one only changes the network.
    gated: ClassVar[bool] = True

    def __init__(self, host: nn.Module, path: str, total: int, groups: int = 1) -> None:
        self.host, self.path, self.total, self.groups = host, path, total, groups
        #: Axes of parameters outside the host that are sliced with the units, as a mask token's.
        self.attached: list[Axis] = []
        self._handles: list[Any] = []
        self._masked: list[nn.Module] = []
        self._kept: Tensor | None = None

    @property
    def name(self) -> str:
        """``path.kind``: in a supernet the module path of its holder."""
        return f'{self.path}.{self.kind}' if self.path else self.kind

    @property
    def owner(self) -> nn.Module:
        """The module that the site belongs to."""
        return self.host.get_submodule(self.path)

    @property
    def holder(self) -> SiteHolder | None:
        """The site's holder in a supernet, else None."""
        return self.owner._modules.get(self.kind)

    @property
    def gate(self) -> BaseGate | None:
        """The gate of a supernet, else None."""
        return getattr(self.holder, 'gate', None)

    @property
    def kept(self) -> Tensor | None:
        """Kept units of a subnet, or of a supernet that was sliced while it trained, else None."""
        if self.gate is None:
            return self._kept
        return self.gate.kept if self.gate.slices else None

    @property
    def present(self) -> int:
        """Units that are physically there."""
        if self.gate is not None:
            return self.gate.present
        return self.total if self.kept is None else len(self.kept)

    # ---- what a kind says -----------------------------------------------------------------------

    def axes(self) -> list[Axis]:
        """The axes that the present units lie along, in a dense net, supernet or subnet.

        Defaults to none, as of a kind that slices nothing.
        """
        return []

    def mask_points(self) -> list[MaskPoint]:
        """Where the mask acts; together the points must scale the value of a unit exactly once.

        Defaults to nowhere, as of a kind whose layers apply the gate themselves.
        """
        return []

    def products(self) -> Mapping[str, tuple[str, ...]]:
        """Modules whose own products, without their children, grow with the size.

        By module path: ``'scores'`` (queries times keys), ``'values'`` (attention times values).
        """
        return {}

    #: Whether the cost does not follow from axes and products. Then :meth:`macs` gives all MACs
    #: of the module at :attr:`path`, and no other kind may lie along its axes.
    has_own_macs: ClassVar[bool] = False

    def macs(self, size: Cost, input_shape: Sequence[int]) -> Cost:
        """MACs of the module at :attr:`path` with ``size`` units; for kinds with ``has_own_macs``.

        ``input_shape`` is the shape of the module's first input, of one image. Other kinds raise
        ``NotImplementedError``.
        """
        raise NotImplementedError

    def params(self, size: Cost) -> Cost:
        """Parameters of the module at :attr:`path` with ``size`` units; for kinds with
        ``has_own_macs``, others raise ``NotImplementedError``.
        """
        raise NotImplementedError

    def paper_cost(self, size: Cost, input_shape: Sequence[int]) -> Cost:
        """The papers' cost term (KCR section 3.3, DCS section 3.4); arguments of :meth:`macs`.

        Raises:
            ValueError: No paper has a cost for this kind.
        """
        raise ValueError(f'expected `cost="macs"` for sites of kind `{self.kind}`, which have no '
                         f'cost of a paper, found `cost="paper"` at `{self.name}`')

    def resized(self, kept: Tensor) -> None:
        """Change the host's attributes, and all else that no weight's shape implies, after a
        slicing.

        ``kept`` are the units of the dense dimension that are left, int64, ascending.
        """

    def lost_outputs(self) -> tuple[str, ...]:
        """Paths of layers whose outputs at dropped units are lost: nothing reads them any more."""
        return ()

    def operators(self) -> tuple[str, ...]:
        """Operators that can compute dropped units in place of attention, the default first."""
        return ()

    # ---- gating and slicing ---------------------------------------------------------------------

    def open(self) -> None:
        """Exchange the owner for an equal module whose layers call hooks, where that is needed."""

    def attach(self, gate: BaseGate) -> None:
        """Put a gate and its masks on the site, as in a supernet."""
        gate.site = self.name
        self.owner.add_module(self.kind, SiteHolder(gate=gate))
        self._mask()

    def detach(self) -> None:
        """Remove the holder and the gate's masks."""
        self._unmask()
        self.owner._modules.pop(self.kind, None)

    def renew_masks(self) -> None:
        """Put the masks of batch norms on the batch norms that are there now.

        Hosts exchange batch norms once a model is built: ``SyncBatchNorm`` for plain ones where
        there is one process, and the other way round on request. Hooks are lost thereby.
        """
        if any(isinstance(module, _BatchNorm) for module in self._masked):
            points = self.mask_points()
            if any(point.module is not module for point, module in zip(points, self._masked)):
                self._unmask()
                self._mask()

    def _mask(self) -> None:
        points = self.mask_points()
        self._masked = [point.module for point in points]
        self._handles = [point.attach(self.gate) for point in points]

    def _unmask(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._masked = [], []

    def check(self, kept: Tensor) -> None:
        """Refuse a selection whose groups keep units in different numbers, but for empty groups."""
        counts = self.group_counts(kept)
        if len(counts) == 0 or not bool((counts == counts[0]).all()):
            raise ValueError('expected equally many channels of every head at site '
                             f'`{self.name}`, found {len(kept)} in other numbers')

    @property
    def rows(self) -> int:
        """Number of groups that must keep equally many units; 1 if each unit is a group itself."""
        return 1 if self.groups == self.total else self.groups

    def group_counts(self, kept: Tensor) -> Tensor:
        """Number of kept units of every group that keeps any, int64."""
        return torch.unique(kept // (self.total // self.groups), return_counts=True)[1]

    def slice_units(self, kept: Tensor, optimizer: Optimizer | None = None) -> Tensor:
        """Slice weights, and moments of an optimizer, to some of the present units.

        ``kept`` are units of the dense dimension, int64, ascending. Returned are their positions
        among the present ones.
        """
        present = self.kept
        units = kept if present is None else \
            torch.isin(present, kept.to(present.device)).nonzero().flatten()
        slice_axes(self.axes(), units, optimizer)
        self.resized(kept)
        return units

    def slice_to(self, kept: Tensor, operator: str | None = None) -> None:
        """Make the site part of a subnet: slice to the kept units, and remove the gate.

        One of :meth:`operators` may compute the others.
        """
        self.check(kept)
        if len(kept) < self.present:
            self.slice_units(kept)
        self.detach()
        self._kept = kept


def holders(root: nn.Module) -> dict[str, SiteHolder]:
    """The holders that have a gate, below ``root``, by site, in the order of the modules."""
    return {name: module for name, module in root.named_modules() if isinstance(module, SiteHolder)}


def block_of(path: str) -> str:
    """The block of a module: its path up to its last number, or the path itself."""
    parts = path.split('.')
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return '.'.join(parts[:numbers[-1] + 1]) if numbers else path

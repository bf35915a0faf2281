"""Bi-mask gate of Once for Both: importance and sparsity of units in one mask."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mmkcr.core import allowed_ratio_sizes
from mmkcr.core.gate import BaseGate
from mmkcr.registry import MODELS


@MODELS.register_module()
class BiMaskGate(BaseGate):
    r"""Choice of one size out of a few, with the most important units (OFB, section 3.2).

    The mask is :math:`m = w\,\sigma(S) + (1 - w)\,V(\alpha)` (equation 3). S is
    the importance score, one per unit. The possible sizes have the probabilities
    :math:`p = \mathrm{softmax}(\alpha)` over the options still alive. The sparsity
    :math:`V = \sum_k p_k\,\mathrm{prefix}_k` (equation 4) is non-increasing and is
    assigned to the units in descending order of S. In eval mode p is one-hot at its
    largest entry, and units outside that option get 0.

    Units may form ``groups`` (attention heads) of equal width. The options are then
    a grid of groups x channels per group: the most important groups, by the sum of
    :math:`\sigma(S)`, with the most important channels of each.

    A gate is sliced while it trains: ``kept`` has the original indices of the units
    that are still present, and all masks are over these. Once it is decided, the gate
    is folded into the weights and gives ones. All of this state is in buffers.

    Args:
        total (int): Number of units.
        groups (int): Number of heads, or 1. Defaults to 1.
        start (float): Smallest option, as a share of a group. Defaults to 0.25.
        step (float): Step of the options, as a share of a group. Defaults to 0.125.
        group_step (int): Step of the number of groups. The full number is always
            an option. Defaults to 2.
        init (str): ``'random'``, alpha from U[0, 1), or ``'uniform'``, alpha 0 (worse: table A.2).
            Defaults to ``'random'``.
        order (str): ``'importance'``, or ``'ordinal'``: sparsity by index, the weight sharing of
            earlier searches (table 5a). Defaults to ``'importance'``.
        std (float): Standard deviation of the truncated normal that S is drawn from.
            Defaults to 0.2.
    """

    slices = grouped = True
    #: Search space by kind of site (table 1 of the paper).
    space: Mapping[str, Mapping[str, float]] = dict(
        embedding=dict(start=1 / 2, step=1 / 32),
        head_channels=dict(start=1 / 4, step=1 / 8, group_step=2),
        heads=dict(group_step=2),
        mlp_hidden=dict(start=1 / 4, step=1 / 8))

    def __init__(self, total: int, groups: int = 1, start: float = 0.25, step: float = 0.125,
                 group_step: int = 2, init: str = 'random', order: str = 'importance',
                 std: float = 0.2) -> None:
        if init not in ('random', 'uniform') or order not in ('importance', 'ordinal'):
            raise ValueError("expected `init` 'random' or 'uniform' and `order` 'importance' or "
                             f"'ordinal' of a gate, found {init!r} and {order!r}")
        if total % groups:
            raise ValueError(f'expected `groups` that divide {total} units, found {groups}')
        # the options: numbers of groups times numbers of channels per group
        self.group_sizes = tuple(sorted({*range(group_step, groups, group_step), groups}))
        self.channel_sizes = allowed_ratio_sizes(total // groups, start, step)
        super().__init__(total, self.group_sizes[0] * self.channel_sizes[0])
        self.groups, self.width, self.order, self.std = groups, total // groups, order, std
        self.importance = nn.Parameter(nn.init.trunc_normal_(torch.empty(total), std=std))
        shape = len(self.group_sizes), len(self.channel_sizes)
        self.alpha = nn.Parameter(torch.rand(shape) if init == 'random' else torch.zeros(shape))
        self.register_buffer('alive', torch.ones(shape, dtype=torch.bool))
        self.register_buffer('kept', torch.arange(total))
        self.register_buffer('folded', torch.tensor(False))
        self.register_buffer('importance_weight', torch.tensor(0.99))  # w of the bi-mask

    def probabilities(self) -> Tensor:
        """p, shape (group options, channel options); 0 for dead options."""
        logits = self.alpha.masked_fill(~self.alive, -torch.inf)
        return logits.flatten().softmax(0).view_as(logits)

    def option_sizes(self) -> Tensor:
        """Units of every option, shape (group options, channel options), int64."""
        groups, channels = (torch.tensor(sizes, device=self.alpha.device)
                            for sizes in (self.group_sizes, self.channel_sizes))
        return groups[:, None] * channels

    @property
    def decided(self) -> bool:
        """Whether only one option is left."""
        return int(self.alive.sum()) == 1

    @property
    def present(self) -> int:
        """Units that are physically there."""
        return len(self.kept)

    @property
    def present_shape(self) -> tuple[int, int]:
        """Groups, and channels per group, that are physically there."""
        groups = len(torch.unique(self.kept // self.width))
        return groups, len(self.kept) // groups

    def restrict(self, alive: Tensor) -> None:
        """Keep only some of the live options; boolean, (group options, channel options)."""
        self.alive.copy_(alive)

    def fold(self) -> None:
        """Give ones from now on, because the mask was folded into the weights."""
        self.folded.fill_(True)
        for parameter in self.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None

    def ranks(self) -> tuple[Tensor, Tensor]:
        """Rank of every group, shape (G,), and of the channels in their group, shape (G, C).

        A group is scored by the channels that it can still keep. So slicing the other
        channels away changes no rank.
        """
        # at least fp32: sums in half precision could rank groups differently
        importance = self.importance.detach().view(self.present_shape)
        importance = importance.to(torch.promote_types(importance.dtype, torch.float32))
        if self.order == 'ordinal':
            groups, channels = (torch.arange(size, device=importance.device)
                                for size in importance.shape)
            return groups, channels.expand_as(importance)
        channel_rank = _rank(importance)
        possible = channel_rank < self._largest(1)
        return _rank((importance.sigmoid() * possible).sum(1)), channel_rank

    def sparsity(self, probabilities: Tensor) -> Tensor:
        """V by equation 4 for given p, shape (present,)."""
        groups, channels = self.present_shape
        by_group = _prefixes(self.group_sizes, groups, probabilities)  # (group options, G)
        by_channel = _prefixes(self.channel_sizes, channels, probabilities)
        # V[g, c] = sum_{a, b} p[a, b] 1[g < groups of a] 1[c < channels of b], for ranks g and c;
        # sums instead of matrix products, which would count as MACs of the network
        values = (probabilities[:, :, None] * by_channel).sum(1)  # (group options, C)
        values = (by_group[:, :, None] * values[:, None]).sum(0)  # (G, C)
        group_rank, channel_rank = self.ranks()
        return values[group_rank[:, None], channel_rank].flatten()

    def keepable(self) -> Tensor | None:
        """Units that some live option can keep: boolean, shape (present,); None if all are."""
        return None if self.folded else self._within(self._largest(0), self._largest(1))

    def supported(self) -> Tensor | None:
        """Units of :meth:`keepable`; in eval mode those that the hard gate keeps.

        Boolean, shape (present,); None if it holds for all units.
        """
        if self.folded or self.training:
            return self.keepable()
        row, column = self._hardest()
        return self._within(self.group_sizes[row], self.channel_sizes[column])

    def _within(self, groups: int, channels: int) -> Tensor | None:
        """As :meth:`_inside`; None where nothing beyond these groups and channels is present."""
        if (groups, channels) == self.present_shape:
            return None
        return self._inside(groups, channels)

    support = supported  # in norms over the units

    def _inside(self, groups: int, channels: int) -> Tensor:
        """Whether a unit is among the first groups and channels by rank, shape (present,)."""
        group_rank, channel_rank = self.ranks()
        return ((group_rank[:, None] < groups) & (channel_rank < channels)).flatten()

    def _largest(self, axis: int) -> int:
        """Groups (axis 0) or channels per group (axis 1) of the largest live option."""
        sizes = (self.group_sizes, self.channel_sizes)[axis]
        return sizes[int(self.alive.any(1 - axis).nonzero()[-1])]

    def soft_mask(self) -> Tensor:
        """Equation 3, shape (present,); exactly 0 for units that no option can keep."""
        return self._mask(self.probabilities())

    def hard_mask(self) -> Tensor:
        """The mask with one-hot p, and 0 for units outside that option, shape (present,)."""
        hard = torch.zeros_like(self.alpha)
        hard[self._hardest()] = 1.
        return self._mask(hard)

    def _mask(self, probabilities: Tensor) -> Tensor:
        if self.folded:
            return torch.ones_like(self.importance)
        weight = self.importance_weight
        mask = weight * self.importance.sigmoid() + (1 - weight) * self.sparsity(probabilities)
        supported = self.supported()
        return mask if supported is None else mask * supported

    def scale(self) -> Tensor:
        """A kept unit's mask once the option is decided, shape (present,), never 0."""
        if self.folded:
            return torch.ones_like(self.importance)
        # w sigmoid(S) + (1 - w) V with V = 1
        return 1 + self.importance_weight * (self.importance.sigmoid() - 1)

    def _hardest(self) -> tuple[int, int]:
        # by the logits: rounding may make probabilities equal although the logits differ
        position = int(self.alpha.detach().masked_fill(~self.alive, -torch.inf).argmax())
        return divmod(position, self.alpha.shape[1])

    def resample(self, generator: torch.Generator | None = None) -> None:
        """Do nothing: the relaxation has no noise."""

    def _draw(self, generator: torch.Generator | None) -> Tensor:
        return torch.zeros(self.total)

    def scores(self) -> Tensor:
        """The sparsity V of every original unit, 0 for removed units, shape (total,)."""
        present = self.sparsity(self.probabilities()).detach()
        return present.new_zeros(self.total).index_copy(0, self.kept, present)

    def start(self, logits: Tensor) -> None:
        """Initialise importance and alpha from the logits of the units.

        The importance is the centred logits at the initial scale ``std``. The options get the
        density of a normal around the number of units that the logits keep. Its standard deviation
        is the widest step between two sizes.
        """
        logits = logits.to(self.importance)
        centred = logits - logits.mean()
        self.importance.data.copy_(self.std * centred / centred.square().mean().sqrt().clamp(
            min=1e-12))
        sizes = self.option_sizes().to(logits)
        width = sizes.flatten().sort().values.diff().max() if sizes.numel() > 1 else 1.
        self.alpha.data.copy_(-((sizes - logits.sigmoid().sum()) / width).square() / 2)

    def expected_size(self) -> Tensor:
        """Expected number of kept units, the sum of V; differentiable."""
        return (self.probabilities() * self.option_sizes()).sum()

    def entropy(self) -> Tensor:
        """Entropy of p in nats."""
        return entropy_of(self.probabilities().flatten())

    def options(self) -> list[tuple[int, float]]:
        """Sizes and logits of the options still alive, group option by group option."""
        sizes, logits = self.option_sizes()[self.alive], self.alpha.detach()[self.alive]
        return list(zip(sizes.tolist(), logits.tolist()))

    def only(self, option: int) -> Tensor:
        """``alive`` with one option, by its position in :meth:`options`."""
        alive = torch.zeros_like(self.alive)
        alive[tuple(self.alive.nonzero()[option])] = True
        return alive

    def selection(self, option: int | None = None) -> Tensor:
        """Original indices of the units that an option keeps, int64, ascending.

        The option is a position in :meth:`options`, by default the most probable one.
        """
        row, column = self._hardest() if option is None else self.alive.nonzero()[option].tolist()
        return self.kept[self._inside(self.group_sizes[row], self.channel_sizes[column])]

    def forward(self) -> Tensor:
        """The mask, shape (present,): soft in training, hard in eval."""
        return self.soft_mask() if self.training else self.hard_mask()


def entropy_of(probabilities: Tensor) -> Tensor:
    """Entropy along the last axis in nats; its gradient is finite where a probability is 0."""
    smallest = torch.finfo(probabilities.dtype).tiny
    return -(probabilities * probabilities.clamp(min=smallest).log()).sum(-1)


def _rank(values: Tensor) -> Tensor:
    """Rank of every entry along the last axis, 0 for the largest; ties in order of the index."""
    return values.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


def _prefixes(sizes: tuple[int, ...], length: int, like: Tensor) -> Tensor:
    """By option, 1 for the first ``size`` ranks and 0 for the rest; shape (options, length)."""
    ranks = torch.arange(length, device=like.device)
    return (ranks < torch.tensor(sizes, device=like.device)[:, None]).to(like.dtype)

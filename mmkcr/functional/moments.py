"""Means and covariances of a stream of activations, in one pass and in fp64.

Shapes: n tokens (rows), d features, p targets, ``*batch`` independent streams (heads, channels).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mmkcr.core.checks import all_finite
from mmkcr.core.processes import count_processes, sum_over_processes

CHUNK = 2048
"""Rows converted to fp64 at a time: 12.6 MB of them at d = 768, 50 MB at d = 3072."""
BLOCK = 512
"""Columns of the scatter matrix that are computed at a time; only its lower triangle is."""


class Moments:
    """Streaming mean and covariance of features, and their cross-covariance with targets.

    Every chunk is centred on its own mean and then merged by the formula of Chan, Golub and
    LeVeque. So a large mean costs no digits. Memory is O(d (d + p)) for streams of any length.

    Args:
        num_features (int): d.
        num_targets (int): p, the width of a second stream, row by row with it. Defaults to 0: none.
        batch (Sequence[int]): Leading shape of independent streams (heads). Defaults to ().
        device (str | torch.device): Where sums live. Defaults to 'cpu'.
        name (str): For error messages. Defaults to 'Moments'.

    Examples:
        >>> moments = Moments(3072, name='layers.0.ffn hidden')
        >>> for hidden in batches:  # (B, N, 3072), any floating dtype
        ...     moments.add(hidden)
        >>> moments.covariance, moments.mean
    """

    def __init__(self, num_features: int, num_targets: int = 0, batch: Sequence[int] = (),
                 device: str | torch.device = 'cpu', name: str = 'Moments') -> None:
        self.num_features, self.num_targets = num_features, num_targets
        self.batch, self.name = tuple(batch), name
        self.count = 0

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*self.batch, *shape, dtype=torch.float64, device=device)

        # scatters are sums of centred products; of the first only the lower triangle is valid
        self._mean, self._scatter = zeros(num_features), zeros(num_features, num_features)
        self._target_mean = zeros(num_targets)
        self._cross_scatter = zeros(num_targets, num_features)

    @torch.no_grad()
    def add(self, features: Tensor, targets: Tensor | None = None) -> 'Moments':
        """Add some rows; returns itself. Nothing is added if a value is not finite.

        Args:
            features (Tensor): (*batch, n, d). Without ``batch`` any (..., d), whose leading axes
                are all rows. Any floating dtype and device.
            targets (Tensor, optional): The same with p in the place of d, if there are targets.
        """
        targets = features[..., :0] if targets is None else targets
        features, targets = (self._rows(*given) for given in (
            (features, self.num_features, 'features'), (targets, self.num_targets, 'targets')))
        for start in range(0, features.shape[-2], CHUNK):
            rows = slice(start, start + CHUNK)
            self._add_chunk(features[..., rows, :], targets[..., rows, :])
        return self

    def _rows(self, values: Tensor, width: int, what: str) -> Tensor:
        """Values as (*batch, n, width)."""
        if values.shape[-1] != width:
            raise ValueError(f'expected {what} of `{self.name}` of width {width}, found '
                             f'{tuple(values.shape)}')
        if not all_finite(values):
            raise ValueError(f'expected finite {what} of `{self.name}`, found `nan` or `inf`')
        return values if self.batch else values.flatten(0, -2)

    def _add_chunk(self, features: Tensor, targets: Tensor) -> None:
        count = features.shape[-2]
        features = self._merged_rows(features.to(self._scatter), self._mean)
        # the lower triangle of rows^T rows, block by block: half of the full product's arithmetic
        for start in range(0, features.shape[-1], BLOCK):
            stop = start + BLOCK
            _add_product(self._scatter[..., start:stop, :stop], features[..., start:stop],
                         features[..., :stop])
        targets = self._merged_rows(targets.to(self._scatter), self._target_mean)
        _add_product(self._cross_scatter, targets, features)  # (*batch, p, d)
        self.count += count

    def _merged_rows(self, rows: Tensor, mean: Tensor) -> Tensor:
        """Centred rows (*batch, n + 1, d) whose scatter a union adds; moves ``mean`` to its mean.

        S = S1 + S2 + (n1 n2 / n) step step^T (Chan, Golub and LeVeque). The last term is one more
        row, sqrt(n1 n2 / n) step, so that the scatter is read and written once.
        """
        count = rows.shape[-2]
        total = self.count + count
        rows_mean = rows.mean(-2)
        step = rows_mean - mean
        merged = rows.new_empty(*rows.shape[:-2], count + 1, rows.shape[-1])
        torch.sub(rows, rows_mean.unsqueeze(-2), out=merged[..., :-1, :])
        merged[..., -1, :] = math.sqrt(self.count * count / total) * step
        mean += step * (count / total)
        return merged

    def share(self) -> 'Moments':
        """Become, in every process, the moments of the rows of all processes; returns itself."""
        if count_processes() == 1:
            return self
        own, counts = self.count, self._mean.new_tensor([float(self.count)])
        sum_over_processes(counts)
        self.count = int(counts)
        share = own / max(self.count, 1)
        mean, target_mean = share * self._mean, share * self._target_mean
        for sums in (mean, target_mean):
            sum_over_processes(sums)
        self._add_step(own, self._mean - mean, self._target_mean - target_mean)
        self._mean, self._target_mean = mean, target_mean
        for sums in (self._scatter, self._cross_scatter):
            sum_over_processes(sums)
        return self

    def _add_step(self, count: int, step: Tensor, target_step: Tensor) -> None:
        """Add the growth of the scatter of ``count`` rows when their mean is moved by ``step``."""
        step, target_step = step.unsqueeze(-2), target_step.unsqueeze(-2)  # rows, (*batch, 1, d)
        _add_product(self._scatter, count * step, step)
        _add_product(self._cross_scatter, count * target_step, step)

    @classmethod
    def union(cls, parts: Sequence['Moments']) -> 'Moments':
        """Moments of the rows of several streams of the same widths, at least one, together."""
        first = parts[0]
        total = cls(first.num_features, first.num_targets, first.batch, first._mean.device,
                    first.name)
        total.count = sum(part.count for part in parts)
        shares = [part.count / max(total.count, 1) for part in parts]
        for part, share in zip(parts, shares):
            total._mean += share * part._mean
            total._target_mean += share * part._target_mean
        # S = sum of S_i + n_i step_i step_i^T, steps from the common mean to the part's own
        for part in parts:
            total._scatter += part._scatter
            total._cross_scatter += part._cross_scatter
            total._add_step(part.count, part._mean - total._mean,
                            part._target_mean - total._target_mean)
        return total

    def mixed(self, mixing: Tensor) -> 'Moments':
        """Moments of linear mixtures ``T h`` of the features, T (*batch, k, d); no targets."""
        mixing = mixing.to(self._mean)
        moments = Moments(mixing.shape[-2], 0, self.batch, self._mean.device, self.name)
        moments.count, moments._mean = self.count, (mixing @ self._mean.unsqueeze(-1)).squeeze(-1)
        moments._scatter = mixing @ (self.covariance * self.count) @ mixing.mT
        return moments

    @property
    def mean(self) -> Tensor:
        """Shape (*batch, d), fp64."""
        return self._not_empty(self._mean)

    @property
    def covariance(self) -> Tensor:
        """``E[(h - mean)(h - mean)^T]``, shape (*batch, d, d), fp64, symmetric."""
        lower = self._not_empty(self._scatter).tril() / self.count
        return lower + lower.tril(-1).mT

    @property
    def variance(self) -> float:
        """Sum of the features' variances, over all streams."""
        return float(self._not_empty(self._scatter).diagonal(dim1=-2, dim2=-1).sum()) / self.count

    @property
    def second_moment(self) -> Tensor:
        """``E[h h^T]``, shape (*batch, d, d), fp64."""
        return self.covariance + self._mean.unsqueeze(-1) * self._mean.unsqueeze(-2)

    @property
    def target_mean(self) -> Tensor:
        """Shape (*batch, p), fp64."""
        return self._not_empty(self._target_mean)

    @property
    def cross_covariance(self) -> Tensor:
        """``E[(y - mean)(h - mean)^T]``, shape (*batch, p, d), fp64."""
        return self._not_empty(self._cross_scatter) / self.count

    def _not_empty(self, total: Tensor) -> Tensor:
        if self.count == 0:
            raise ValueError(f'expected at least one row of `{self.name}`, found 0')
        return total


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``left^T right`` in place: a temporary product would cost as much as a narrow one."""
    if total.ndim == 2:
        total.addmm_(left.mT, right)
    else:
        total += left.mT @ right

"""Dropping units greedily, one after the other, on a pair of symmetric matrices.

The order of :mod:`mmkcr.functional.pivots` is this sweep over the pair (A, B) = (P, G). A step
drops a unit S, with the Cholesky factor ``A_SS = T T^T``, ``u = T^-1 A_S:`` and ``v = T^-1 B_S:``.
The pair becomes

    A <- A - u^T u,   B <- B - u^T w - w^T u,   w = v - (v_S T^-T) u / 2

and the summed error grows by ``tr(A_SS^-1 B_SS)``. A step needs only the rows of the dropped unit.
So the updates u and w are collected in a panel and applied by one matrix product, and dropped units
are removed from the matrices from time to time.

Shapes: L pairs that share the units, m channels left, units of s channels.
"""

import torch
from torch import Tensor

PANEL = 64
"""Rows of u that are held back before they are multiplied out."""
LOST = 1e-6
"""The sweep starts afresh from exact matrices when diagonals have fallen by this factor."""


class Sweep:
    """Drops units greedily by the smallest ``tr(A_SS^-1 B_SS) + extra``.

    ``noisy`` and ``gram`` are C' and G of all channels, (L, d, d). ``first`` and ``second`` are A
    and B (L, m, m) as of the last flush, for the units in ``alive``, of which those that were not
    dropped since are ``open``. ``panel`` (L, about 2 PANEL, m) holds the updates since, alternately
    s rows of u and of w. ``blocks`` (2, L, m / s, s, s) are the diagonal blocks of A and of B as of
    now. Of dropped units they are the identity and 0, so that batched operations stay finite.
    """

    def __init__(self, noisy: Tensor, gram: Tensor, size: int, extra: Tensor) -> None:
        self.noisy, self.gram, self.size, self.extra = noisy, gram, size, extra
        self.alive = torch.arange(len(extra), device=extra.device)
        self.open = torch.ones_like(self.alive, dtype=torch.bool)
        self.dropped: list[int] = []
        self.changes: list[Tensor] = []

    def run(self) -> tuple[list[int], Tensor]:
        """Units in the order in which they are dropped, and the error that each adds, (n,)."""
        self._start()
        while len(self.dropped) < len(self.extra):
            # the downdates cancel digits as the diagonals shrink; exact matrices restore them
            if (self._largest() < LOST * self.scales).any():
                self._start()
            self._step()
            if self.rows == self.panel.shape[1]:
                self._flush()
        return self.dropped, torch.stack(self.changes)

    def _start(self) -> None:
        """Compute the exact matrices (P, G) of the units that are left."""
        self.alive, self.open = self.alive[self.open], self.open[self.open]
        left, gone = map(self._channels, (self.alive, torch.tensor(
            self.dropped, dtype=torch.int64, device=self.alive.device)))
        self.first = torch.cholesky_inverse(torch.linalg.cholesky(_block(self.noisy, left, left)))
        self.second = _block(self.gram, left, left)
        if len(gone):  # E^T G E with E = [I; shares], which reconstructs the dropped channels
            shares = _block(self.noisy, gone, left) @ self.first
            mixed = _block(self.gram, left, gone) @ shares
            self.second = self.second + mixed + mixed.mT + \
                shares.mT @ _block(self.gram, gone, gone) @ shares
        self._new_panel()
        self.scales = self._largest()

    def _channels(self, units: Tensor) -> Tensor:
        return (units[:, None] * self.size + torch.arange(self.size).to(units)).flatten()

    def _new_panel(self) -> None:
        s, m = self.size, self.first.shape[-1]
        self.blocks = torch.stack([_diagonal_blocks(self.first, s),
                                   _diagonal_blocks(self.second, s)])
        self.diagonals = self.blocks.diagonal(dim1=-2, dim2=-1)  # a view
        self.neutral = torch.stack([torch.eye(s), torch.zeros(s, s)]).to(self.blocks)[:, None]
        self.blocks[:, :, ~self.open] = self.neutral[:, :, None]
        self.offset = self.extra[self.alive].masked_fill(~self.open, float('inf'))
        self.panel = self.first.new_empty(len(self.first), 2 * s * max(PANEL // s, 1), m)
        self.rows = 0  # of the panel that are in use

    def _largest(self) -> Tensor:
        """Largest diagonal entries of A and of B over the open units, (2, L)."""
        return self.diagonals.masked_fill(~self.open[:, None], 0).amax((-2, -1))

    def _changes_now(self) -> Tensor:
        """Error that every unit adds, ``tr(A_SS^-1 B_SS) + extra``, (units alive,).

        Of dropped units it is infinite.
        """
        a, b = self.blocks
        if self.size == 1:
            change = (b / a).sum((0, 2, 3))  # summed over the L pairs
        else:
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(a))
            change = (inverse * b).sum((0, 2, 3))
        return change.clamp_(min=0).add_(self.offset)

    def _step(self) -> None:
        """Drop one unit, and append its update to the panel."""
        s, change = self.size, self._changes_now()
        at = int(change.argmin())
        self.dropped.append(int(self.alive[at]))
        self.changes.append(change[at])
        self.open[at] = False
        self.offset[at] = float('inf')

        # rows A_S: and B_S: of the last flush minus the panel's u_S^T u and w_S^T u + u_S^T w
        here = slice(at * s, at * s + s)
        columns = torch.cat([self.first[:, here], self.second[:, here]], 1)  # (L, 2 s, m)
        if self.rows:
            panel = self.panel[:, :self.rows]  # (L, rows, m)
            mine = panel[:, :, here]
            only_u = mine.clone()
            only_u.unflatten(1, (-1, 2, s))[:, :, 1] = 0  # the w rows have no part in A
            columns -= torch.cat([only_u, _swap(mine, s)], 2).mT @ panel
        root = torch.linalg.cholesky(self.blocks[0, :, at])
        a_here, b_here = columns[:, :s], columns[:, s:]
        u, v = _divide(root, a_here), _divide(root, b_here)
        # T^-1 v_S^T = T^-1 B_SS T^-T = v_S T^-T, because B_SS is symmetric
        inner = _divide(root, v[:, :, here].mT)
        w = v - inner @ u / 2
        self.panel[:, self.rows:self.rows + s] = u
        self.panel[:, self.rows + s:self.rows + 2 * s] = w
        self.rows += 2 * s

        # the diagonal blocks are updated at once: the next choice needs them
        u, w = (x.mT.unflatten(1, (-1, s)) for x in (u, w))  # u_S^T by unit, (L, m / s, s, s)
        mixed = _multiply(u, w)
        self.blocks[0] -= _multiply(u, u)
        self.blocks[1] -= mixed + mixed.mT
        self.blocks[:, :, at] = self.neutral

    def _flush(self) -> None:
        """Apply the panel to A and B, and empty it."""
        panel = self.panel[:, :self.rows]
        us = panel.unflatten(1, (-1, 2, self.size))[:, :, 0].flatten(1, 2)
        self.first.baddbmm_(us.mT, us, alpha=-1)
        self.second.baddbmm_(panel.mT, _swap(panel, self.size), alpha=-1)  # u^T w + w^T u
        # dropped units are removed once they are a tenth of all: the copy costs O(m^2)
        left = self.open.nonzero()[:, 0]
        if len(left) < 0.9 * len(self.alive):
            places = self._channels(left)
            self.first = _block(self.first, places, places)
            self.second = _block(self.second, places, places)
            self.alive, self.open = self.alive[left], self.open[left]
        self._new_panel()


def _divide(root: Tensor, rows: Tensor) -> Tensor:
    """``root^-1 rows`` of a lower triangular root (L, s, s) and rows (L, s, k)."""
    if root.shape[-1] == 1:  # numbers, many times faster
        return rows / root
    return torch.linalg.solve_triangular(root, rows, upper=False)


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    """Products ``left right^T`` of blocks (…, s, s)."""
    return left * right if left.shape[-1] == 1 else left @ right.mT


def _swap(panel: Tensor, size: int) -> Tensor:
    """The panel (L, 2 s steps, m) with the rows of u and of w exchanged."""
    return panel.unflatten(1, (-1, 2, size)).flip(2).flatten(1, 3)


def _block(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    # one pass; a selection of rows and then of columns takes four times as long
    return matrix[:, rows[:, None], columns]


def _diagonal_blocks(matrix: Tensor, size: int) -> Tensor:
    """Blocks (L, m / s, s, s) on the diagonal of (L, m, m)."""
    blocks = matrix.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
    return blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).contiguous()

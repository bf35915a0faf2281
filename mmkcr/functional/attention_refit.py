"""Attention with narrower heads, or with convolutions for heads, in closed form.

*Queries and keys.* The logits are ``q_i . k_j = q_i^T I k_j``. Let ``Mq = E q q^T``, and let K be
the covariance of the keys. If a bilinear form P replaces the identity, the mean squared change of
a logit is ``||Mq^(1/2) (I - P) K^(1/2)||_F^2`` for independent i and j. The best P of rank r comes
from the truncated SVD ``Mq^(1/2) K^(1/2) = U S V^T`` (Eckart and Young); its error is the sum of
the squared singular values that are left out. In the bases ``Tk = S^(-1/2) U^T Mq^(1/2)`` and
``Tq = Tk^(-T)`` this P keeps the first r channels.

A term that is the same for all keys cancels in the softmax: keys may be centred, queries not.

*Values.* The rows of an attention map sum to 1, so attention commutes with any affine map of a
head's values. Hence values and output projection form one matrix product, whose rank is reduced.

*Rotary positions* rotate pairs of channels, each pair by its own angles. Only a scaled rotation
of each pair commutes with them, so whole pairs are selected.

Shapes: H heads of d channels, D channels of the stream, r new channels per head.
"""

import torch
from torch import Tensor

from .pivots import UnitOrder, pivot_order, ridge

ROTARY_LAYOUTS = ('half', 'interleaved')


def logit_bases(query_moment: Tensor, key_moment: Tensor,
                rho: float = 1e-3) -> tuple[Tensor, Tensor, Tensor]:
    """Bases of queries and keys whose first r channels give the best rank-r logits, for every r.

    With all channels the logits do not change: ``Tq^T Tk = I``. The softmax keeps its old scale.

    Args:
        query_moment (Tensor): ``E q q^T`` with biases, not centred, (H, d, d).
        key_moment (Tensor): Covariance of the keys, (H, d, d), best within images: keys less
            their mean over the keys of the same softmax.
        rho (float): Relative ridge, so that both can be inverted. Defaults to 1e-3.

    Returns:
        tuple[Tensor, Tensor, Tensor]: Tq and Tk, (H, d, d), and all singular values, (H, d), fp64.
    """
    query_root, key_root = (_root(moment, rho) for moment in (query_moment, key_moment))
    left, values, _ = torch.linalg.svd(query_root @ key_root)
    # S^(-1/2) balances the two sides: the new queries and the new keys both have the moment S
    key = values.rsqrt().unsqueeze(-1) * (left.mT @ query_root)  # Tk, (H, d, d)
    return torch.linalg.inv(key).mT, key, values


def value_bases(columns: Tensor, covariance: Tensor,
                rho: float = 1e-3) -> tuple[Tensor, Tensor, Tensor]:
    """Bases of values whose first r channels give the best rank-r output of a head, for every r.

    Args:
        columns (Tensor): Columns of the output projection by head, (H, m, d) with m >= d.
        covariance (Tensor): Of every head's output, (H, d, d).
        rho (float): Relative ridge. Defaults to 1e-3.

    Returns:
        tuple[Tensor, Tensor, Tensor]: T (H, d, d) for the values; the new columns (H, m, d), with
        ``columns T^-1``; all singular values, (H, d), fp64.
    """
    root = _root(covariance, rho)
    _, values, right = torch.linalg.svd(columns.double() @ root, full_matrices=False)
    # T = V^T C^(-1/2): the new channels are white, and columns T^-1 = U S holds all of the scale
    mixing = right @ torch.linalg.inv(root)
    # times the head's RMS deviation: values stay in the range that half precision had before
    scale = covariance.double().diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-30).sqrt()
    mixing = mixing * scale[:, None, None]
    return mixing, columns.double() @ torch.linalg.inv(mixing), values


def fold_heads(values: Tensor, mixing: Tensor) -> Tensor:
    """Weight or bias of a projection whose heads are mixed afterwards: ``T_h (W_h x + b_h)``.

    Of (H * d, D) or (H * d,) by T (H, r, d): (H * r, D) or (H * r,), of the same dtype.
    """
    heads = values.to(mixing.device, torch.float64).reshape(len(mixing), mixing.shape[-1], -1)
    return (mixing.double() @ heads).reshape(-1, *values.shape[1:]).to(values)


def rotary_pairs(width: int, layout: str) -> Tensor:
    """The two channels of every rotary pair of ``width`` d, int64 (d / 2, 2).

    Pairs are (i, i + d / 2) in the layout 'half', (2 i, 2 i + 1) in 'interleaved'.

    Raises:
        ValueError: An odd width, or another layout.
    """
    if layout not in ROTARY_LAYOUTS or width % 2:
        raise ValueError(f'expected an even head width and a layout of {ROTARY_LAYOUTS}, found '
                         f'{width} and `{layout}`')
    channels = torch.arange(width)
    return channels.view(2, -1).T if layout == 'half' else channels.view(-1, 2)


def channels_of_pairs(pairs: Tensor, width: int, layout: str) -> Tensor:
    """Channels of some pairs, in the order of the narrower head, int64 (2 k,).

    Args:
        pairs (Tensor): Positions of the pairs, (k,).
        width (int): Channels of the wide head.
        layout (str): Of the wide head, see :func:`rotary_pairs`.
    """
    channels = rotary_pairs(width, layout).to(pairs.device)[pairs]
    return (channels.T if layout == 'half' else channels).flatten()


def rotary_order(query_moment: Tensor, key_moment: Tensor, layout: str = 'half',
                 rho: float = 1e-3) -> UnitOrder:
    """Order the rotary pairs by the squared error of the logits, one order for all heads.

    Every pair p has two parts, ``q_p . k_p`` and ``q_p . J k_p``, where J rotates by 90 degrees.
    The logit is the sum of the first parts over all pairs.

    Args:
        query_moment (Tensor): ``E q q^T`` of the *rotated* queries, (H, d, d).
        key_moment (Tensor): The same of the rotated keys, or their covariance.
        layout (str): See :func:`rotary_pairs`. Defaults to 'half'.
        rho (float): Relative ridge. Defaults to 1e-3.
    """
    pairs = rotary_pairs(query_moment.shape[-1], layout).to(query_moment.device)
    n = len(pairs)

    def split(moment: Tensor) -> Tensor:  # (H, pair, channel, pair, channel)
        channels = pairs.flatten()
        return moment.double()[:, channels][:, :, channels].view(-1, n, 2, n, 2)

    # the forms X of a part q_p' X k_p: the identity and J
    kinds = torch.tensor([[[1., 0.], [0., 1.]], [[0., -1.], [1., 0.]]]).to(split(query_moment))
    # E (q_p' X k_p) (q_q' Y k_q) = tr(X K_pq Y' M_qp) for independent queries and keys;
    # x, y: kind of part; p, q: pair; a, b, i, j: channel within a pair
    moments = torch.einsum('xia,hpaqb,yjb,hqjpi->hpxqy', kinds, split(key_moment), kinds,
                           split(query_moment)).reshape(-1, 2 * n, 2 * n)
    sums = torch.tensor([1., 0.]).to(moments).repeat(n)  # (d,): the logit is sums . parts
    return pivot_order(moments, torch.outer(sums, sums).expand_as(moments), groups=2, rho=rho)


def _root(moment: Tensor, rho: float) -> Tensor:
    """Symmetric square root of moments (*batch, d, d), fp64, to which a relative ridge is added."""
    values, vectors = torch.linalg.eigh(moment.double() + ridge(moment, rho).diag_embed())
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2) @ vectors.mT

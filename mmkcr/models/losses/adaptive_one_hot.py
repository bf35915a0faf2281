"""The adaptive one-hot loss of Once-for-Both (section 3.3)."""

import math
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from mmkcr.core import MacsModel, parse_target
from mmkcr.models.gates import BiMaskGate
from mmkcr.models.gates.bimask import entropy_of
from mmkcr.registry import MODELS

_PRESETS = dict(
    paper=dict(one_hot=0.5, budget=1e2, importance=2e-5, relative=False, per_option=False),
    reference=dict(one_hot=0.5, budget=5., importance=dict(attn=4e-4, other=1e-4), relative=True,
                   per_option=True))


def one_hot_terms(probabilities: Tensor, eps: float = 1e-3) -> Tuple[Tensor, Tensor, Tensor]:
    r"""Entropy and tangent term of one site's p, over its D options alive.

    :math:`H(p) = -\sum p \ln p` and :math:`\tan(\pi/2 - \pi\omega)` with
    :math:`\omega = \mathrm{var}(p) / \mathrm{var}_{max}`,
    :math:`\mathrm{var}_{max} = (D - 1)/D^2` (equation 5). The tangent is
    unbounded at both ends, uniform and one-hot p: :math:`\omega` is clamped.

    Args:
        probabilities (Tensor): Of the options alive, shape (D,), D > 1.
        eps (float): :math:`\omega` is clamped to [eps, 1 - eps], the term thus
            to about :math:`\pm 1/(\pi\,\mathrm{eps})`. Defaults to 1e-3.

    Returns:
        tuple[Tensor, Tensor, Tensor]: Entropy in nats, tangent, :math:`\omega`.
    """
    options = probabilities.numel()
    share = (probabilities.square().sum() - 1 / options) / (1 - 1 / options)
    tangent = torch.tan(math.pi / 2 - math.pi * share.clamp(eps, 1 - eps))
    return entropy_of(probabilities), tangent, share


@MODELS.register_module()
class AdaptiveOneHotLoss(nn.Module):
    r"""Drives every site to one option, and the network to its budget (OFB, equations 5-6).

    .. math:: \mu_1 \sum_i \left[H(p_i) + \tan(\pi/2 - \pi\omega_i)\right]
        + \mu_2\, d(g(V), \tau) + \mu_3 \sum \sigma(S)

    over the sites that have more than one option left; g is the exact count of
    the multiply-accumulates at the expected sizes. It takes the place of the
    price in a :class:`~mmkcr.models.wrappers.SearchModel`.

    ``preset='paper'``: :math:`\mu` 0.5, 1e2, 2e-5, d the distance in G.
    ``preset='reference'``, the public code's: 0.5, 5, 4e-4 for attention and
    1e-4 elsewhere, d the squared distance as a share of the dense network, the
    tangent divided by the number of options. Any of the numbers can be given.

    Args:
        target (str | int | float): :math:`\tau`, see
            :func:`~mmkcr.core.parse_target`.
        preset (str): ``'paper'`` or ``'reference'``. Defaults to ``'reference'``.
        one_hot (float, optional): :math:`\mu_1`. Defaults to the preset's.
        budget (float, optional): :math:`\mu_2`. Defaults to the preset's.
        importance (float | dict, optional): :math:`\mu_3`, or one for ``attn``
            and one for ``other`` sites. Defaults to the preset's.
        eps (float): See :func:`one_hot_terms`. Defaults to 1e-3.
        input_shape (Sequence[int], optional): (C, H, W) of the image that the
            MACs are counted for. Defaults to that of the first batch.
        part (str, optional): See :class:`~mmkcr.models.losses.MacsPrice`.

    Raises:
        ValueError: Unknown ``preset``, a negative weight, or ``eps`` out of (0, 0.5).
    """

    def __init__(self,
                 target: Union[str, int, float],
                 preset: str = 'reference',
                 one_hot: Optional[float] = None,
                 budget: Optional[float] = None,
                 importance: Union[float, Mapping[str, float], None] = None,
                 eps: float = 1e-3,
                 input_shape: Optional[Sequence[int]] = None,
                 part: Optional[str] = None) -> None:
        super().__init__()
        if preset not in _PRESETS:
            raise ValueError(f'expected `preset` among {sorted(_PRESETS)}, found {preset!r}')
        given = dict(one_hot=one_hot, budget=budget, importance=importance)
        chosen = {**_PRESETS[preset], **{k: v for k, v in given.items() if v is not None}}
        both = chosen['importance']
        if not isinstance(both, Mapping):
            chosen['importance'] = both = dict(attn=both, other=both)
        weights = [chosen['one_hot'], chosen['budget'], *both.values()]
        if min(weights) < 0 or not 0 < eps < 0.5:
            raise ValueError('expected weights of at least 0 and `eps` within (0, 0.5), found '
                             f'{weights} and {eps}')
        self.target, self.eps, self.part = target, eps, part
        self.one_hot, self.budget = chosen['one_hot'], chosen['budget']
        self.importance = dict(chosen['importance'])
        self.relative, self.per_option = chosen['relative'], chosen['per_option']
        self.input_shape = None if input_shape is None else tuple(input_shape)

    def forward(self, macs: MacsModel) -> Dict[str, Tensor]:
        """Price the gates as they are.

        Args:
            macs (MacsModel): Of the supernet.

        Returns:
            dict[str, Tensor]: ``loss_one_hot``, ``loss_budget`` and
            ``loss_importance``; for the log ``macs`` (G, expected), ``macs_present``
            (G, of the tensors that are there), ``options`` (alive, a site) and
            ``one_hot`` (mean :math:`\\omega`, 1 when all is decided).
        """
        gates = {name: layer.gate for name, layer in macs.layers.items()}
        expected = macs({name: gate.expected_size() for name, gate in gates.items()})
        open_gates = {name: gate for name, gate in gates.items() if not gate.decided}
        terms, shares = self._one_hot(list(open_gates.values()), expected)
        importance = sum((self._weight(name) * gate.importance.sigmoid().sum()
                          for name, gate in open_gates.items()), start=expected.new_zeros(()))
        present = macs({name: gate.present for name, gate in gates.items()})
        alive = torch.stack([gate.alive.sum() for gate in gates.values()])
        return dict(loss_one_hot=self.one_hot * terms,
                    loss_budget=self.budget * self._distance(expected, macs.dense),
                    loss_importance=importance, macs=expected.detach() / 1e9,
                    macs_present=expected.new_tensor(present / 1e9), options=alive.float().mean(),
                    one_hot=(shares + len(gates) - len(open_gates)) / len(gates))

    def _one_hot(self, gates: Sequence[BiMaskGate], like: Tensor) -> Tuple[Tensor, Tensor]:
        terms: List[Tensor] = [like.new_zeros(())]
        shares = like.new_zeros(())
        for gate in gates:
            probabilities = gate.probabilities()[gate.alive]
            entropy, tangent, share = one_hot_terms(probabilities, self.eps)
            terms.append(entropy + tangent / (len(probabilities) if self.per_option else 1))
            shares = shares + share.detach()
        return torch.stack(terms).sum(), shares

    def _weight(self, site: str) -> float:
        return self.importance['attn' if 'attn' in site.split('.') else 'other']

    def _distance(self, expected: Tensor, dense: int) -> Tensor:
        target = parse_target(self.target, dense)
        if self.relative:
            return ((expected - target) / dense).square()
        return (expected - target).abs() / 1e9

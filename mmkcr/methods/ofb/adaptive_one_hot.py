"""The adaptive one-hot loss of Once-for-Both (section 3.3)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmkcr.core import CostModel, MacsModel
from mmkcr.methods.search.price import Priced
from mmkcr.registry import MODELS
from .bimask import BiMaskGate, entropy_of

_PRESETS = dict(
    balanced=dict(one_hot=0.5, budget=1., importance=dict(attn=2e-4, other=5e-5), growth=1e-3,
                  balance=0.5, per_option=True),
    paper=dict(one_hot=0.5, budget=1e2, importance=2e-5, growth=0., balance=None,
               per_option=False),
    # the public code adds H, the tangent and S, and then halves the sum: hence 0.5 on S too
    reference=dict(one_hot=0.5, budget=5., importance=dict(attn=0.5 * 4e-4, other=0.5 * 1e-4),
                   growth=0., balance=None, per_option=True))


def one_hot_terms(probabilities: Tensor, options: Tensor,
                  eps: float = 1e-3) -> tuple[Tensor, Tensor, Tensor]:
    r"""Entropy in nats, tangent, and :math:`\omega` of p, by site, over its D live options.

    :math:`H(p) = -\sum p \ln p` and :math:`\tan(\pi/2 - \pi\omega)` with
    :math:`\omega = \mathrm{var}(p) / \mathrm{var}_{max}`,
    :math:`\mathrm{var}_{max} = (D - 1)/D^2` (equation 5).

    Args:
        probabilities (Tensor): Shape (sites, K), 0 for dead options.
        options (Tensor): D of every site, above 1, shape (sites,).
        eps (float): :math:`\omega` is clamped to [eps, 1 - eps], as the tangent is unbounded for
            uniform and for one-hot p. Defaults to 1e-3.
    """
    # var(p) = (sum p^2 - 1 / D) / D, and var_max = (1 - 1 / D) / D
    share = (probabilities.square().sum(1) - 1 / options) / (1 - 1 / options)
    tangent = torch.tan(math.pi / 2 - math.pi * share.clamp(eps, 1 - eps))
    return entropy_of(probabilities), tangent, share


@MODELS.register_module()
class AdaptiveOneHotLoss(Priced):
    r"""Drives every site to one option, and the network to its budget (OFB, equations 5-6).

    .. math:: \mu_1 \sum_i \left[H(p_i) + \tan(\pi/2 - \pi\omega_i)\right]
        + \mu_2\, d(g(V), \tau) + \mu_3 \sum \sigma(S)

    over the sites that have more than one option left. g is the exact count of the MACs at the
    expected sizes; of time it is the expected value over the options, from a table. This loss takes
    the place of the price in a :class:`~mmkcr.methods.search.search_model.SearchModel`.

    With the published weights, at the start of a search on DeiT-S, the gradient of
    the tangent on alpha is a thousand times that of the budget. Every site then
    ends at the option whose alpha was drawn largest, and a final forced cut, which
    no gradient takes into account, meets the budget. So there are three presets:

    - ``'balanced'``: d is :math:`|\ln(g/\tau)|`, quadratic within ``band`` of
      0. :math:`\mu_2` starts at 1 and grows by ``growth`` times the distance
      in every training step of the gates. The one-hot term of a site is scaled so that the
      norm of its gradient on alpha is ``balance`` times that of
      :math:`\mu_2 \ln g`, with a weight of at most :math:`\mu_1`. So the budget
      outweighs it at every site while the network is more than ``band`` off.
    - ``'paper'``: :math:`\mu` is 0.5, 1e2 and 2e-5; d is the distance in G.
    - ``'reference'``, with the products that the public code has: :math:`\mu` is
      0.5, 5, and 2e-4 for attention or 5e-5 elsewhere; d is the squared distance
      as a share of the dense network. The tangent is divided by the number of
      options, as in ``'balanced'``.

    Args:
        target (str | int | float): :math:`\tau`, see :func:`~mmkcr.core.parse_target`.
        preset (str): Defaults to ``'balanced'``. Each of its numbers can be overridden:
            ``one_hot``, :math:`\mu_1`; ``budget``, :math:`\mu_2`; ``importance``, :math:`\mu_3`, or
            a dict with one for ``attn``, the sites of attention layers, and one for ``other``
            sites; ``growth``, 1e-3 or, in the published presets, 0; ``balance``, 0.5, only of the
            preset ``'balanced'``.
        entropy (float): Weight of H within the one-hot term (table 5d). Defaults to 1.
        tangent (float): Weight of the tangent within it. Defaults to 1.
        band (float): See above. Defaults to 0.02.
        eps (float): See :func:`one_hot_terms`. Defaults to 1e-3.
        cost, **kwargs: See :class:`~mmkcr.methods.search.price.Priced`; or numbers of the preset.
            ``cost`` defaults to ``'macs'``.
    """

    def __init__(self, target: str | int | float, preset: str = 'balanced', entropy: float = 1.,
                 tangent: float = 1., band: float = 0.02, eps: float = 1e-3, cost: str = 'macs',
                 **kwargs: Any) -> None:
        if preset not in _PRESETS:
            raise ValueError(f'expected `preset` among {sorted(_PRESETS)}, found {preset!r}')
        kwargs = {key: value for key, value in kwargs.items() if value is not None}  # not given
        if 'balance' in kwargs and preset != 'balanced':
            raise ValueError("expected `balance` with `preset='balanced'` only, found "
                             f'{kwargs["balance"]} with {preset!r}')
        chosen = {key: kwargs.pop(key, value) for key, value in _PRESETS[preset].items()}
        super().__init__(cost, target, **kwargs)
        both = chosen['importance']
        self.importance = both if isinstance(both, Mapping) else dict(attn=both, other=both)
        weights = [chosen['one_hot'], entropy, tangent, chosen['budget'], chosen['growth'],
                   chosen['balance'] or 0., *self.importance.values()]
        if min(weights) < 0 or not 0 < eps < 0.5 or not 0 < band < 0.5:
            raise ValueError('expected weights of at least 0 and `eps` and `band` within (0, 0.5), '
                             f'found {weights}, {eps} and {band}')
        self.preset, self.eps, self.band = preset, eps, band
        self.one_hot, self.entropy, self.tangent = chosen['one_hot'], entropy, tangent
        self.balance, self.growth = chosen['balance'], chosen['growth']
        self.per_option = chosen['per_option']
        # a buffer, so that a grown weight is in the checkpoint
        self.register_buffer('budget', torch.tensor(float(chosen['budget'])), self.growth > 0)

    def forward(self, macs: MacsModel) -> dict[str, Tensor]:
        """Price the gates as they are.

        Returns:
            dict[str, Tensor]: ``loss_one_hot``, ``loss_budget`` and
            ``loss_importance``; for the log ``macs`` (G, expected), ``macs_present``
            (G, of the present tensors), ``options`` (mean number of live options per site),
            ``one_hot`` (mean :math:`\\omega`, 1 when all sites are decided), ``one_hot_weight``
            (mean over the open sites) and ``budget_weight``; of another cost than MACs its
            expected value under its name (ms, M, MB).

        Raises:
            ValueError: Gates of another type.
        """
        gates: dict[str, BiMaskGate] = {name: site.gate for name, site in macs.sites.items()}
        for name, gate in gates.items():
            if not isinstance(gate, BiMaskGate):
                raise ValueError('expected gates of type `mmkcr.BiMaskGate` for the '
                                 f'`AdaptiveOneHotLoss`, found `{type(gate).__name__}` at site '
                                 f'`{name}`')
        probabilities, options, sizes = self._options(list(gates.values()))
        kept = dict(zip(gates, (probabilities * sizes).sum(1)))
        cost, target = self.cost_and_target(macs)
        expected = cost.expectation(list(gates), probabilities, sizes)
        undecided = options > 1  # with one option var_max is 0
        entropy, tangent, share = one_hot_terms(probabilities[undecided], options[undecided],
                                                self.eps)
        if self.per_option:
            tangent = tangent / options[undecided]
        terms = self.entropy * entropy + self.tangent * tangent
        open_gates = [gate for gate, is_open in zip(gates.values(), undecided.tolist()) if is_open]
        weights = self._one_hot_weights(terms, expected, open_gates)
        budget = self._budget(expected, cost, target)
        importance = sum((self.importance['attn' if site.of_attention else 'other']
                          * site.gate.importance.sigmoid().sum()
                          for site in macs.sites.values() if not site.gate.decided),
                         start=expected.new_zeros(()))
        present = macs({name: gate.present for name, gate in gates.items()})
        decided = len(gates) - len(open_gates)  # each counts as omega 1 in the mean
        logged = {} if cost is macs else {cost.name: expected.detach() / cost.scale}
        return dict(logged, loss_one_hot=(weights * terms).sum(), loss_budget=budget,
                    loss_importance=importance, macs=macs(kept).detach() / 1e9,
                    macs_present=expected.new_tensor(present / 1e9), options=options.mean(),
                    one_hot=(share.detach().sum() + decided) / len(gates),
                    one_hot_weight=weights.sum() / max(1, len(open_gates)),
                    budget_weight=self.budget.clone())

    @staticmethod
    def _options(gates: Sequence[BiMaskGate]) -> tuple[Tensor, Tensor, Tensor]:
        """p (sites, K), D (sites,) and the options' sizes (sites, K), for all sites at once."""
        # padding is False in `alive`, and so gets the probability 0
        logits = pad_sequence([gate.alpha.flatten() for gate in gates], True)
        alive = pad_sequence([gate.alive.flatten() for gate in gates], True)
        sizes = pad_sequence([gate.option_sizes().flatten() for gate in gates], True)
        probabilities = logits.masked_fill(~alive, -torch.inf).softmax(1)
        return probabilities, alive.sum(1).to(logits), sizes.to(logits)

    def _one_hot_weights(self, terms: Tensor, expected: Tensor,
                         gates: Sequence[BiMaskGate]) -> Tensor:
        """Weights of the open sites' one-hot terms, at most mu_1."""
        highest = torch.full_like(terms, self.one_hot, requires_grad=False)
        if self.balance is None or not gates or not terms.requires_grad:
            return highest
        alphas = [gate.alpha for gate in gates]
        # a site's term depends on its own alpha alone, so the gradient of the sum gives them all;
        # norms by site of the gradients of the one-hot terms, and of ln g
        pulls = [torch.stack([gradient.norm() for gradient in torch.autograd.grad(
            value, alphas, retain_graph=True)]) for value in (terms.sum(), expected.log())]
        tiny = torch.finfo(terms.dtype).tiny
        return torch.minimum(highest, self.balance * self.budget * pulls[1]
                             / pulls[0].clamp(min=tiny))

    def _budget(self, expected: Tensor, cost: CostModel, target: int) -> Tensor:
        """The budget's term, whose weight grows in training."""
        if self.preset == 'balanced':  # slope 1 outside of the band
            ratio = torch.log(expected / target)
            distance = F.huber_loss(ratio, torch.zeros_like(ratio), delta=self.band) / self.band
        elif self.preset == 'reference':
            distance = ((expected - target) / cost.dense).square()
        else:
            distance = (expected - target).abs() / cost.scale
        return self.weigh(self.budget, distance)

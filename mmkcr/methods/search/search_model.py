"""The search: a supernet with a price and regularisers, and gates that start from given scores."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import broadcast
from mmengine.logging import MessageHub
from torch import Tensor, nn

from mmkcr.core import BaseGate, MacsModel, check_finite, check_finite_gates
from mmkcr.core.gate import resample_gates
from mmkcr.core.structure import read_json
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.slicing import sites_that_slice
from mmkcr.models.tasks import part_to_count, search_space, spaces_of_copies, task_forward
from mmkcr.registry import MODELS
from .regularized import RegularizedModel, are_views

Scores = dict[str, tuple[np.ndarray, np.ndarray]]


@MODELS.register_module()
class SearchModel(RegularizedModel):
    """A task model whose backbone carries gates (KCR, section 3.3).

    It adds ``loss_price``, ``loss_entropy`` if wanted, and the regularisers to the task's losses.
    The gates' noise is a function of a seed and a step counter, both in the checkpoint, so it is
    the same on every rank and continues seamlessly after a resume.

    For a self-supervised model with a momentum copy (MoCo v3, BYOL ...) the online backbone is
    searched. The copy averages its weights and uses its channels, noise included.

    Args:
        architecture (dict | nn.Module): The task model; its backbone is in the
            supernet state (``gates=...``).
        price (dict): See :class:`~mmkcr.methods.search.price.MacsPrice`. Defaults to
            ``dict(type='mmkcr.MacsPrice')``.
        entropy_weight (float): Weight of the gates' mean binary entropy in nats, which pushes them
            to 0 or 1. The paper mentions the term and gives no weight. Defaults to 0.
        scores (str, optional): ``sensitivity.json`` of ``mmkcr compress``, which the gates start
            from, see :func:`.start_from_scores`. The price then needs its ``input_shape``.
            Defaults to None.
        **kwargs: See :class:`RegularizedModel`.
    """

    def __init__(self, architecture: dict | nn.Module, price: dict | None = None,
                 entropy_weight: float = 0., scores: str | None = None, **kwargs: Any) -> None:
        super().__init__(architecture, **kwargs)
        if not self.gates():
            raise ValueError('expected a backbone with gates to search on (`gates=dict(type='
                             '"mmkcr.GumbelChannelGate")`), found a '
                             f'`{search_space(self.architecture).type_name}` without')
        # momentum copies use the gates of the network that they average
        for copy in spaces_of_copies(self.architecture):
            _follow_masks(copy, search_space(self.architecture))
        self.price = MODELS.build(price or dict(type='mmkcr.MacsPrice'))
        self.entropy_weight = entropy_weight
        # seed and step of the noise: those of the first rank, also under `diff_rank_seed`
        state = torch.tensor([torch.initial_seed() % 2**31, 0], device='cpu')
        broadcast(state)
        self._noise_state = state.tolist()
        self._macs: MacsModel | None = None
        #: bool: Whether a scaler skips steps whose gradients are not finite. `FiniteHook` sets it,
        #: and ends a run that skips too many.
        self.steps_may_be_skipped = False
        if scores is not None:
            if self.price.input_shape is None:
                raise ValueError('expected a price with `input_shape` for gates that begin with '
                                 f'`scores`, found none beside `{scores}`')
            start_from_scores(self.gates(), load_scores(scores), self.macs_model())

    def gates(self) -> dict[str, nn.Module]:
        """The gates by site."""
        return search_space(self.architecture).gates()

    def gate_parameters(self) -> list[nn.Parameter]:
        """Parameters of the gates (the paper's alpha)."""
        return [p for gate in self.gates().values() for p in gate.parameters()]

    def train(self, mode: bool = True) -> 'SearchModel':
        """Set the mode. Gates are new, so they learn also in stages that the host freezes."""
        learning = [(p, p.requires_grad) for p in self.gate_parameters()]
        super().train(mode)
        for gate in self.gates().values():
            gate.train(mode)
        for parameter, learns in learning:
            parameter.requires_grad_(learns)
        return self

    def macs_model(self, input_shape: tuple | None = None) -> MacsModel:
        """MACs of the task model, or of its backbone, as a function of the gates' sizes.

        Counted once, for the price's ``input_shape`` or, if it has none, the given (C, H, W).
        """
        if self._macs is None:
            shape = self.price.input_shape or input_shape
            counted = part_to_count(self.architecture, self.price.part)
            space = search_space(self.architecture)
            self._macs = MacsModel(counted, space.host, space.gated_sites(),
                                   task_forward(counted, shape))
        return self._macs

    def forward(self, inputs: Tensor, data_samples: list | None = None,
                mode: str = 'tensor') -> Any:
        """As :meth:`RegularizedModel.forward`, with the price in mode ``'loss'``."""
        if mode != 'loss':
            return super().forward(inputs, data_samples, mode)
        first = inputs[0] if are_views(inputs) else inputs
        # before the noise is drawn: the first call runs a forward of its own
        macs = self.macs_model(tuple(first.shape[1:]))
        seed, step = self._noise_state
        # all modules: masks on queries and keys have noise too, but no gated site
        resample_gates(self.architecture, seed, step)
        self._noise_state[1] = step + 1
        losses = super().forward(inputs, data_samples, mode)
        losses.update(self.price(macs))
        if self.entropy_weight:
            entropy = torch.stack([gate.entropy() for gate in self.gates().values()])
            losses['loss_entropy'] = self.entropy_weight * entropy.mean()
        return losses

    def parse_losses(self, losses: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the losses, as the host does, and stop if the sum is not finite.

        Where ``steps_may_be_skipped`` only gates that are not finite stop the run: no smaller loss
        scale mends them.
        """
        loss, logged = super().parse_losses(losses)
        if not torch.isfinite(loss):
            step = MessageHub.get_current_instance().get_info('iter', 0) + 1
            # the gates first: a loss that they enter is a consequence
            check_finite_gates(self.gates(), f' at iteration {step}')
            if not self.steps_may_be_skipped:
                # sums stand first in the log: read from its end, the first is a term
                check_finite(dict(reversed(logged.items())),
                             f'losses and prices at iteration {step}')
        return loss, logged

    def end_search(self) -> None:
        """Hook: all sizes are decided. It runs before a distributed wrapper is renewed."""

    def get_extra_state(self) -> Tensor:
        """Seed and step of the gates' noise, for the checkpoint."""
        return torch.tensor(self._noise_state)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore seed and step of the gates' noise."""
        self._noise_state = state.tolist()


def load_scores(path: str | Path) -> Scores:
    """Order of the units and loss at each size, by site, from a ``sensitivity.json``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It has no sites, or another content.
    """
    data, scores = read_json(Path(path), 'a sensitivity'), {}
    if not isinstance(data, Mapping) or not data:
        raise ValueError(f'expected a sensitivity file with sites, found none in `{path}`')
    for name, entry in data.items():
        try:
            order, losses = np.asarray(entry['order']), np.asarray(entry['losses'], float)
            # a permutation of the units, and the losses with 0 to n units kept
            good = order.dtype.kind in 'iu' and np.isfinite(losses).all() and \
                np.array_equal(np.sort(order), np.arange(len(order))) and \
                losses.shape == (len(order) + 1, )
        except (KeyError, TypeError, ValueError, IndexError):
            good = False
        if not good:
            raise ValueError('expected an order of units and a loss for each size of site '
                             f'`{name}`, found others in `{path}`')
        scores[name] = order, losses
    return scores


def _follow_masks(copied: SearchSpace, online: SearchSpace) -> None:
    """Give a momentum copy the masks, noise included, of the network that it averages.

    Raises:
        ValueError: Gates that slice the network while it trains: the copy's tensors would not
            follow.
    """
    if sites_that_slice(copied.sites):
        raise ValueError('expected gates that leave the tensors whole while they train (such as '
                         f'`mmkcr.GumbelChannelGate`) of `{copied.type_name}` with a momentum '
                         'copy, found some that slice them')
    leaders = online.gates()
    for name, gate in copied.gates().items():
        gate.mask_like(leaders[name])


def start_from_scores(gates: Mapping[str, BaseGate], scores: Scores,
                      macs: MacsModel) -> dict[str, Tensor]:
    """Initialise gates from the scores of their units, in place.

    A unit's score is the loss that it avoids per MAC, given the units that come before it. The
    units of all sites are ranked together, and a unit's logit is the normal quantile of its rank.
    Then one number is added to all logits, so that the search starts at the same expected MACs as
    without scores. Only the order of the units is new. Sites without scores keep their gates. So do
    the channels of heads and of residual streams, because their scores refer to other bases than
    the network's.

    Args:
        gates (Mapping[str, BaseGate]): By site.
        scores (Mapping): Order of the units and losses by site, see :func:`load_scores`.
        macs (MacsModel): Of the supernet.

    Returns:
        dict[str, Tensor]: Logits by site, (total,) each.

    Raises:
        ValueError: No site has scores, or one has scores of another number of units.
    """
    known = {name: scores[name] for name in gates
             if name in scores and not name.endswith(('.head_channels', '.embedding'))}
    if not known:
        raise ValueError(f'expected scores of some of the sites {sorted(gates)[:3]}, found those '
                         f'of {sorted(scores)[:3]}: `mmkcr compress CONFIG CHECKPOINT --sites` '
                         'with the kinds of the search writes them')
    for name, (order, _) in known.items():
        if len(order) != gates[name].total:
            raise ValueError(f'expected scores of {gates[name].total} units at site `{name}`, '
                             f'found {len(order)}')
    with torch.no_grad():
        wanted = _mean_macs(gates, macs)  # before any gate changes
        logits = _quantiles(known, gates, macs)
        low, high = -20., 20.  # bisection for the shift: expected MACs rise with it
        for _ in range(40):
            middle = (low + high) / 2
            shifted = {name: values if gates[name].decided else values + middle
                       for name, values in logits.items()}
            for name, values in shifted.items():
                gates[name].start(values)
            low, high = (low, middle) if _mean_macs(gates, macs) > wanted else (middle, high)
    return shifted


def _mean_macs(gates: Mapping[str, BaseGate], macs: MacsModel) -> float:
    return float(macs({name: gate.expected_size() for name, gate in gates.items()}))


def _quantiles(known: Scores, gates: Mapping[str, BaseGate], macs: MacsModel) -> dict[str, Tensor]:
    """Normal quantiles of the units' ranks over all sites, by site, in the order of the units."""
    from sklearn.isotonic import isotonic_regression
    totals = {name: gate.total for name, gate in gates.items()}
    values, places = [], []
    for name, (order, losses) in known.items():
        # per unit; not `macs.dense`, which lacks the layers that are added to the network
        saved = float(macs(totals) - macs({**totals, name: 1})) / max(len(order) - 1, 1)
        # slopes of the hull of the losses descend, so their ranks keep the order of the units
        slopes = isotonic_regression(np.maximum(losses[:-1] - losses[1:], 0), increasing=False)
        values.append(slopes / max(saved, 1.))
        places.append(np.arange(len(order)) / len(order))
    lengths, values, places = list(map(len, values)), np.concatenate(values), np.concatenate(places)
    ranked = np.lexsort((places, -values))  # the largest gain first, then the earlier unit
    shares = np.empty(len(values))  # of units that rank below, in (0, 1)
    shares[ranked] = 1 - (np.arange(len(values)) + 0.5) / len(values)
    quantiles = torch.special.ndtri(torch.from_numpy(shares)).split(lengths)
    # the inverse of the order: where each unit stands in it
    return {name: of_site[torch.from_numpy(order.argsort())]
            for (name, (order, _)), of_site in zip(known.items(), quantiles)}

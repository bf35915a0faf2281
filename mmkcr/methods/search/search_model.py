"""The search: a supernet with a price and regularisers."""

from typing import Any

import torch
from mmengine.dist import broadcast
from mmengine.logging import MessageHub
from torch import Tensor, nn

from mmkcr.core import MacsModel, check_finite, check_finite_gates
from mmkcr.core.gate import resample_gates
from mmkcr.models.tasks import copied_spaces, counted_part, search_space, task_forward
from mmkcr.registry import MODELS
from .regularized import RegularizedModel, are_views
from .start import load_scores, start_from_scores


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

    Raises:
        FileNotFoundError: The file of scores does not exist.
        ValueError: No searchable backbone, one without gates, or scores that do not fit.
    """

    def __init__(self, architecture: dict | nn.Module, price: dict | None = None,
                 entropy_weight: float = 0., scores: str | None = None, **kwargs: Any) -> None:
        super().__init__(architecture, **kwargs)
        if not self.gates():
            raise ValueError('expected a backbone with gates to search on (`gates=dict(type='
                             '"mmkcr.GumbelChannelGate")`), found a '
                             f'`{search_space(self.architecture).type_name}` without')
        # momentum copies use the gates of the network that they average
        for copy in copied_spaces(self.architecture):
            copy.mask_like(search_space(self.architecture))
        self.price = MODELS.build(price or dict(type='mmkcr.MacsPrice'))
        self.entropy_weight = entropy_weight
        self._noise_state, self._noise_agreed = [torch.initial_seed() % 2**31, 0], False
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
            counted = counted_part(self.architecture, self.price.part)
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
        seed, step = self._noise()
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

        Where ``steps_may_be_skipped`` only gates that are not finite stop the run: no smaller
        loss scale mends them.

        Raises:
            ValueError: A gate, a loss or a price is not finite: the message has its name and
                the iteration.
        """
        loss, logged = super().parse_losses(losses)
        if not torch.isfinite(loss):
            step = MessageHub.get_current_instance().get_info('iter', 0) + 1
            # the gates first: a loss that they enter is a consequence
            check_finite_gates(self.gates(), f' at iteration {step}')
            if not self.steps_may_be_skipped:
                check_finite(logged, f'losses and prices at iteration {step}')
        return loss, logged

    def _noise(self) -> list[int]:
        """Seed and step of the noise: those of the first rank, also under ``diff_rank_seed``."""
        if not self._noise_agreed:
            state = torch.tensor(self._noise_state)
            broadcast(state)
            self._noise_state, self._noise_agreed = state.tolist(), True
        return self._noise_state

    def end_search(self) -> None:
        """Hook: all sizes are decided. It runs before a distributed wrapper is renewed."""

    def get_extra_state(self) -> Tensor:
        """Seed and step of the gates' noise, for the checkpoint."""
        return torch.tensor(self._noise_state)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore seed and step of the gates' noise."""
        self._noise_state = state.tolist()

"""One iteration of the bilevel search, for any loop."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from mmengine.dist import all_reduce_params
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import Tensor, nn

from mmkcr.core import eval_mode
from mmkcr.models.tasks import held_copies, unwrap
from .search_constructor import KEYS, gate_parameters


class BilevelSteps:
    """Updates gates and weights in turn; a mixin before one of MMEngine's training loops."""

    runner: Runner

    def _prepare(self, runner: Runner) -> None:
        """Find the gates, and refuse a run that is not a search."""
        self._module = unwrap(runner.model)
        self._gates = gate_parameters(self._module)
        keys = set(getattr(runner.optim_wrapper, 'keys', set)())
        if not keys >= set(KEYS):
            raise ValueError('expected an `optim_wrapper` with the keys `weights` and '
                             '`architecture` (constructor `mmkcr.SearchOptimWrapperConstructor`), '
                             f'found {sorted(keys) or type(runner.optim_wrapper).__name__}')

    def run(self) -> nn.Module:
        """Launch training."""
        # the host's `OptimWrapperDict` leaves this to its parts
        for wrapper in self.runner.optim_wrapper.values():
            wrapper.initialize_count_status(self.runner.model, self._iter, self._max_iters)
        return super().run()

    def run_iter(self, idx: int, data_batch: Sequence[dict],
                 architecture_batch: Sequence[dict]) -> None:
        """Update the gates, then the weights.

        Args:
            idx (int): Number of the iteration, within the epoch if there are any.
            data_batch (Sequence[dict]): Batch of the weights' part, the one
                that hooks see.
            architecture_batch (Sequence[dict]): Batch of the other part.
        """
        hook_args = dict(batch_idx=idx, data_batch=data_batch)
        self.runner.call_hook('before_train_iter', **hook_args)
        logs = self._step_architecture(architecture_batch)
        # gradients of the gates that are being accumulated must not see this step, nor may the
        # weight of a price grow for gates that are not updated
        price = getattr(self._module, 'price', None)
        with _gradients_aside(self._gates), nullcontext() if price is None else eval_mode(price):
            outputs = self.runner.model.train_step(
                data_batch, optim_wrapper=self.runner.optim_wrapper['weights'])
        outputs = {**outputs, **{f'architecture/{name}': value for name, value in logs.items()}}
        self.runner.call_hook('after_train_iter', **hook_args, outputs=outputs)
        self._iter += 1

    def _step_architecture(self, batch: Sequence[dict]) -> dict[str, Tensor]:
        wrapper: OptimWrapper = self.runner.optim_wrapper['architecture']
        # momentum copies average the weights once per weight step, so not here
        # the bare module, as a distributed wrapper would reduce the gradients of the weights too
        with wrapper.optim_context(self._module), held_copies(self._module):
            data = self._module.data_preprocessor(batch, True)
            losses = self._module._run_forward(data, mode='loss')
        loss, logs = self._module.parse_losses(losses)
        loss = wrapper.scale_loss(loss)
        # accumulated gradients of the weights must survive this backward pass; re-entrant
        # checkpointing, the hosts' `with_cp`, forbids `backward(inputs=...)`
        if any(getattr(module, 'with_cp', False) for module in self._module.modules()):
            gates = {id(gate) for gate in self._gates}
            others = [param for param in self._module.parameters() if id(param) not in gates]
            with _gradients_aside(others):
                wrapper.backward(loss)
        else:
            wrapper.backward(loss, inputs=self._gates)
        if wrapper.should_update():
            all_reduce_params([gate.grad for gate in self._gates if gate.grad is not None],
                              op='mean')
            wrapper.step()
            wrapper.zero_grad()
        return logs


@contextmanager
def _gradients_aside(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Remove gradients for the block and restore them; those that it computes are dropped."""
    kept = [param.grad for param in parameters]
    for param in parameters:
        param.grad = None
    try:
        yield
    finally:
        for param, grad in zip(parameters, kept):
            param.grad = grad

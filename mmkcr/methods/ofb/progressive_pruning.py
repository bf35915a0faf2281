"""Options die, tensors shrink, and the budget is met: the search of Once-for-Both."""

import gc
import logging
import math
from collections.abc import Iterator

import torch
from mmengine.dist import broadcast, get_world_size
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import Tensor
from torch.optim import Optimizer

from mmkcr.core import TOLERANCE, can_meet, choose_within
from mmkcr.datasets.part import sample_sources
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.slicing import apply_decisions, copy_decisions, slice_as_state
from mmkcr.models.tasks import find_task, renew_record, search_space, unwrap
from mmkcr.registry import HOOKS
from .bimask import BiMaskGate


@HOOKS.register_module()
class ProgressivePruningHook(Hook):
    r"""Drops options while a supernet trains, and slices units that no option keeps (OFB, 3.3).

    At every event the options with :math:`p \le \eta \bar p` are dropped. If the largest option of
    a site is among them, weights and optimizer moments are sliced. If one option is left, the mask
    is folded into the weights. Neither changes the network's output. Averaged weights (``EMAHook``)
    follow, and a distributed wrapper is renewed.

    The budget is the target of the model's price. An option is dropped only if the others still
    contain a
    network within [0.97, 1] of the target. At the end of the search, ``share``, such a network is
    chosen among the remaining options, near the learned probabilities
    (:func:`~mmkcr.core.choose_options`). So the search cannot miss its target, and a target that no
    options meet is refused before training starts. The gates' buffers record which options and
    units remain; a supernet takes that shape before a checkpoint is loaded into it.

    Args:
        interval (int, optional): Iterations between events. Defaults to None:
            a third of one pass over the samples, however often a ``RepeatDataset`` has them.
        eta (float): :math:`\eta`, within [0, 1). Defaults to 0.2.
        share (float): Share of the run by which all sizes are decided, within (0, 1].
            Defaults to 0.5.
    """

    priority = 'ABOVE_NORMAL'  # before `EMAHook` loads a checkpoint

    def __init__(self, interval: int | None = None, eta: float = 0.2,
                 share: float = 0.5) -> None:
        if interval is not None and interval < 1 or not 0 <= eta < 1 or not 0 < share <= 1:
            raise ValueError('expected `interval` of at least 1, `eta` within [0, 1) and `share` '
                             f'within (0, 1] of ProgressivePruningHook, found {interval}, {eta} '
                             f'and {share}')
        self.interval, self.eta, self.share = interval, eta, share
        self._every = interval or 1  # set for a run

    def before_train(self, runner: Runner) -> None:
        """Refuse a model without options, and a target that they cannot meet, with the range."""
        model = unwrap(runner.model)
        price = getattr(model, 'price', None)
        if getattr(price, 'target', None) is None or price.input_shape is None:
            raise ValueError('expected a `price` with `target` and `input_shape` for '
                             f'ProgressivePruningHook, found `{type(price).__name__}` in '
                             f'`{type(model).__name__}`')
        if not isinstance(getattr(runner.optim_wrapper, 'optimizer', None), Optimizer):
            raise ValueError('expected one optimizer for ProgressivePruningHook, found '
                             f'`{type(runner.optim_wrapper).__name__}`')
        self._choose(model)
        self._every = self.interval or max(1, _epoch_length(runner) // 3)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: dict | None = None,
                         outputs: dict | None = None) -> None:
        """Prune when an event is due."""
        model, done = unwrap(runner.model), runner.iter + 1
        # from then on all open sites are decided at once, within the budget
        last = done >= int(self.share * runner.max_iters)
        if all(gate.decided for gate in model.gates().values()) or not (
                last or done % self._every == 0):
            return
        for parameter in model.gate_parameters():
            broadcast(parameter.data)  # every rank decides on the same numbers, bit for bit
        if last:
            self._decide(model, runner.logger)
        else:
            self._prune(model)
        # the averages follow, and the wrapper is renewed
        space = search_space(model)
        changed = apply_decisions(space.sites, runner.optim_wrapper.optimizer)
        for average in self._averages(runner):
            copy_decisions(average.sites, space.sites)
        if changed:
            self._renew(runner)
            self._report(runner)

    @staticmethod
    def _choose(model: torch.nn.Module) -> dict[str, int]:
        """Choose a network within the budget; positions among the options alive."""
        return choose_within(model.gates(), *model.price.cost_and_target(model.macs_model()))

    def _prune(self, model: torch.nn.Module) -> None:
        """Drop unlikely options: all of them, or site by site as far as the budget allows."""
        gates, (cost, target) = model.gates(), model.price.cost_and_target(model.macs_model())
        low = int(target * (1 - TOLERANCE)) + 1

        def affordable(alive: dict[str, Tensor]) -> bool:
            """Whether the options still contain a network within the budget."""
            sizes = {site: gates[site].option_sizes()[kept].tolist()
                     for site, kept in alive.items()}
            return can_meet(sizes, cost, low, target)

        alive = {site: gate.alive for site, gate in gates.items()}
        likely = {site: self._likely(gate) for site, gate in gates.items()}
        if affordable(likely):
            alive = likely
        else:
            for site, kept in likely.items():
                if affordable({**alive, site: kept}):
                    alive[site] = kept
        for site, gate in gates.items():
            gate.restrict(alive[site])

    def _likely(self, gate: BiMaskGate) -> Tensor:
        probabilities = gate.probabilities().detach()
        # eta times the mean probability of the options alive, which is 1 / their number; the
        # likeliest option always stays
        threshold = self.eta / int(gate.alive.sum())
        return gate.alive & (probabilities > min(threshold, float(probabilities.max()) * 0.999))

    def _decide(self, model: torch.nn.Module, logger: logging.Logger) -> None:
        """Choose a network within the budget, and log how likely its options were."""
        chosen, likely, forced = self._choose(model), [], []
        for site, gate in model.gates().items():
            probabilities = gate.probabilities().detach()[gate.alive]
            gate.restrict(gate.only(chosen[site]))
            if len(probabilities) > 1:
                probability, best = float(probabilities[chosen[site]]), float(probabilities.max())
                likely.append(probability)
                if probability < best:
                    forced.append(f'{site} ({probability:.2g} instead of {best:.2g})')
        if likely:
            logger.info(f'ProgressivePruningHook: {len(likely)} sites were still open; the chosen '
                        f'options had a probability of {min(likely):.2g} at least and of '
                        f'{sum(likely) / len(likely):.2g} on average')
        if forced:
            logger.warning('ProgressivePruningHook: the budget forced options that are less likely '
                           f'than others at {len(forced)} of {len(likely)} open sites: '
                           f'{", ".join(forced)}')

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Take the checkpoint's shape, optimizer included, before the weights are loaded."""
        state = checkpoint.get('state_dict', checkpoint)
        space, task = search_space(unwrap(runner.model)), find_task(runner.model)
        name = next(name for name, module in task.named_modules() if module is space.host)
        prefix = f'{name}.' if name else ''
        wrapper = runner.optim_wrapper  # a config where nothing is trained
        optimizer = wrapper.optimizer if isinstance(wrapper, OptimWrapper) else None
        changed = slice_as_state(space.sites, state, prefix, optimizer)
        for average in self._averages(runner):
            slice_as_state(average.sites, state, prefix)
        if changed:
            self._renew(runner)

    @staticmethod
    def _averages(runner: Runner) -> Iterator[SearchSpace]:
        """Search spaces of averaged copies; their record of parameters is renewed after use."""
        for hook in runner.hooks:
            average = getattr(hook, 'ema_model', None)
            if average is not None:
                yield search_space(average.module)
                renew_record(average)

    @staticmethod
    def _renew(runner: Runner) -> None:
        """Renew a distributed wrapper for the parameters that now exist and learn."""
        model = unwrap(runner.model)
        if all(gate.folded for gate in model.gates().values()):
            model.end_search()
        if is_model_wrapper(runner.model):
            # no reference may keep the old wrapper alive
            module, runner.model = runner.model.module, None
            gc.collect()  # a freed wrapper removes its hooks from the parameters
            runner.model = runner.wrap_model(runner.cfg.get('model_wrapper_cfg'), module)

    @staticmethod
    def _report(runner: Runner) -> None:
        model = unwrap(runner.model)
        gates, macs = model.gates(), model.macs_model()
        present = {site: gate.present for site, gate in gates.items()}
        cost, left = model.price.cost_model(macs), macs(present)
        note = '' if cost is macs else f'; {cost.noun} of what is there: {cost.text(cost(present))}'
        runner.logger.info(
            f'ProgressivePruningHook: after iteration {runner.iter + 1} {left / macs.dense:.1%} '
            f'of the MACs are there ({left / 1e9:.4g}G), '
            f'{sum(gate.decided for gate in gates.values())} of {len(gates)} sites are '
            f'decided{note}')


def _epoch_length(runner: Runner) -> int:
    """Iterations in which all processes together see as many samples as there are distinct ones.

    Not the loader's length: that of an ``InfiniteSampler`` is the same for any number of processes.
    """
    loader = runner.train_dataloader
    size = loader.batch_sampler.batch_size * get_world_size()
    return math.ceil(len(set(sample_sources(loader.dataset))) / size)

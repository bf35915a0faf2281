"""The bilevel search of KCR-Transformer, algorithm 1: the parts of the data, and their turns."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from mmengine.dataset import InfiniteSampler
from mmengine.dist import all_reduce_params
from mmengine.optim import OptimWrapper
from mmengine.registry import DATA_SAMPLERS, DATASETS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from mmkcr.core import eval_mode
from mmkcr.datasets.part import DatasetPart, sample_sources
from mmkcr.engine.resume.batches import EndlessBatches, set_epoch, source_sampler
from mmkcr.models.tasks import hold_copies, unwrap
from mmkcr.registry import LOOPS
from .constructors import KEYS, gate_parameters


class CycledSampler(Sampler):
    """Repeats a finite sampler, built from its config, until enough samples are drawn.

    Pass k of epoch e has the order of the inner sampler's epoch ``e * passes + k``.
    """

    def __init__(self, dataset: Dataset, sampler: Mapping, num_samples: int,
                 seed: int | None = None) -> None:
        self.dataset = dataset
        self.sampler = DATA_SAMPLERS.build(dict(sampler),
                                           default_args=dict(dataset=dataset, seed=seed))
        self.num_samples = num_samples
        self.epoch = 0

    @property
    def seed(self) -> int | None:
        """int: The inner sampler's seed."""
        return getattr(self.sampler, 'seed', None)

    @seed.setter
    def seed(self, seed: int) -> None:
        self.sampler.seed = seed

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        # rounded up; the last pass may be cut short
        passes = -(-self.num_samples // len(self.sampler))
        for k in range(passes):
            if hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(self.epoch * passes + k)
            left = self.num_samples - k * len(self.sampler)
            for index, _ in zip(self.sampler, range(left)):
                yield index

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, whose order comes next."""
        self.epoch = epoch


def split_indices(total: int, architecture_fraction: float, seed: int,
                  sources: Sequence[int] | None = None) -> tuple[list, list]:
    """Split a dataset's indices into disjoint parts, the same on every rank.

    Args:
        total (int): Number of indices.
        architecture_fraction (float): Share of the samples that the gates learn from, in (0, 1).
        seed (int): Seed of the split.
        sources (Sequence[int], optional): Sample of every index, see :func:`sample_sources`; all
            indices of a sample go to one part. Defaults to None: each index is a sample.

    Returns:
        tuple[list, list]: Indices for the weights and indices for the gates, ascending.

    Raises:
        ValueError: A share out of range, or one that leaves a part empty.
    """
    if not 0 < architecture_fraction < 1:
        raise ValueError('expected `architecture_fraction` within (0, 1), found '
                         f'{architecture_fraction}')
    sources = torch.arange(total) if sources is None else torch.tensor(sources)
    # of samples, not indices: copies of one sample must not be on both sides
    samples, sample = sources.unique(return_inverse=True)  # the latter of every index, (total,)
    number = len(samples)
    count = round(number * architecture_fraction)
    if not 0 < count < number:
        raise ValueError(f'expected a search set that `architecture_fraction='
                         f'{architecture_fraction}` splits into two parts, found {number} samples')
    order = torch.randperm(number, generator=torch.Generator().manual_seed(seed))
    second = torch.zeros(number, dtype=torch.bool)
    second[order[:count]] = True
    return tuple((second[sample] == part).nonzero().flatten().tolist() for part in (False, True))


def build_split_dataloaders(runner: Runner, config: Mapping, architecture_fraction: float,
                            split_seed: int,
                            endless: bool = False) -> tuple[DataLoader, DataLoader]:
    """Build the loaders of the weights' and the architecture's part.

    An epoch is one pass over the weights' part; the other loader cycles and yields at least as many
    batches.

    Args:
        runner (Runner): Of the run; it builds the loaders.
        config (Mapping): ``train_dataloader``, whose settings both have.
        architecture_fraction (float): See :func:`split_indices`.
        split_seed (int): Seed of the split.
        endless (bool): Whether each loader goes through its part at its own pace, for runs that
            count iterations. Defaults to False.

    Raises:
        TypeError: ``config`` is a loader.
        ValueError: The sampler has no epochs, or a part has less than a batch for every rank.
    """
    if not isinstance(config, Mapping):
        raise TypeError('expected the config of `train_dataloader`, to build two loaders from, '
                        f'found `{type(config).__name__}`')
    config = copy.deepcopy(dict(config))
    # built once: both parts share it
    dataset = config.pop('dataset')
    dataset = DATASETS.build(dataset) if isinstance(dataset, dict) else dataset
    if hasattr(dataset, 'full_init'):
        dataset.full_init()
    parts = [DatasetPart(dataset, indices)
             for indices in split_indices(len(dataset), architecture_fraction, split_seed,
                                          sample_sources(dataset))]
    weights = _build(runner, config, parts[0])
    sampler = source_sampler(weights)
    if isinstance(sampler, InfiniteSampler) and not endless:
        raise ValueError('expected a sampler of epochs such as `DefaultSampler` for '
                         f'`BilevelTrainLoop`, found `{type(sampler).__name__}`')
    size = weights.batch_sampler.batch_size
    for name, part in zip(KEYS, parts):
        if len(part) < size * runner.world_size:
            raise ValueError(f'expected at least one batch of {size} for each of '
                             f'{runner.world_size} rank(s) in the part of the {name}, found '
                             f'{len(part)} of {len(dataset)} samples')
    if endless:
        return weights, _build(runner, config, parts[1])
    # a batch sampler that groups by shape may yield fewer batches than full ones
    slack = 0 if type(weights.batch_sampler) is BatchSampler else 2
    cycled = dict(type=CycledSampler, sampler=config['sampler'],
                  num_samples=(len(weights) + slack) * size)
    return weights, _build(runner, {**config, 'sampler': cycled}, parts[1])


def _build(runner: Runner, config: dict, part: DatasetPart) -> DataLoader:
    return runner.build_dataloader(
        {**config, 'dataset': part}, seed=runner.seed,
        diff_rank_seed=runner._randomness_cfg.get('diff_rank_seed', False))


class _BilevelLoop:
    """Updates gates and weights in turn; a mixin before one of MMEngine's training loops."""

    def __init__(self, runner: Runner, dataloader: DataLoader | dict,
                 architecture_fraction: float = 0.3, split_seed: int = 0, **kwargs: Any) -> None:
        self._module = unwrap(runner.model)
        self._gates = gate_parameters(self._module)
        keys = set(getattr(runner.optim_wrapper, 'keys', set)())
        if not keys >= set(KEYS):
            raise ValueError('expected an `optim_wrapper` with the keys `weights` and '
                             '`architecture` (constructor `mmkcr.SearchOptimWrapperConstructor`), '
                             f'found {sorted(keys) or type(runner.optim_wrapper).__name__}')
        weights_loader, self.architecture_dataloader = build_split_dataloaders(
            runner, dataloader, architecture_fraction, split_seed,
            endless=isinstance(self, IterBasedTrainLoop))
        super().__init__(runner, weights_loader, **kwargs)

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
            idx (int): Number of the iteration within the epoch.
            data_batch (Sequence[dict]): Batch of the weights, which hooks see.
            architecture_batch (Sequence[dict]): Batch of the gates.
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
        with wrapper.optim_context(self._module), hold_copies(self._module):
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
    """Remove gradients for the block and restore them; gradients of the block are dropped."""
    kept = [param.grad for param in parameters]
    for param in parameters:
        param.grad = None
    try:
        yield
    finally:
        for param, grad in zip(parameters, kept):
            param.grad = grad


@LOOPS.register_module()
class BilevelTrainLoop(_BilevelLoop, EpochBasedTrainLoop):
    """Trains gates and weights in turn, on disjoint parts of the training set.

    KCR-Transformer v2, algorithm 1: the search set is split once. In each iteration a batch of one
    part updates the gates, then a batch of the other part updates the weights. An epoch is one pass
    over the weights' part. The architecture's losses are logged with the prefix ``architecture/``.

    Neither step affects the other's gradients, even while gradients are accumulated. The model's
    ``price``, if it has one, is in training mode in the gates' step alone, so that a weight that
    grows does so once an iteration. It supports AMP, gradient accumulation and clipping for each,
    EMA, and distributed training, where gates get the mean gradient over ranks.

    Args:
        runner (Runner): Its model offers ``gate_parameters()``; its ``optim_wrapper`` is one of
            :class:`mmkcr.SearchOptimWrapperConstructor`.
        dataloader (dict): Config of the loader; both parts use it.
        architecture_fraction (float): Share of the samples that train the
            gates, within (0, 1). Defaults to 0.3.
        split_seed (int): Seed of the split. Defaults to 0.
        **kwargs: ``max_epochs``, ``val_begin``, ``val_interval``, ``dynamic_intervals``.
    """

    def run_epoch(self) -> None:
        """One pass over the weights' part."""
        self.runner.call_hook('before_train_epoch')
        # hooks that switch transforms make the loader that they know of start new workers
        if self.dataloader.persistent_workers and self.dataloader._iterator is None:
            self.architecture_dataloader._iterator = None
        # the host's sampler hook knows of the other loader only
        set_epoch(self.architecture_dataloader, self._epoch)
        self.runner.model.train()
        # the weights' loader comes first: its end is the end of the epoch
        batches = zip(self.dataloader, self.architecture_dataloader)
        for index, (weights_batch, architecture_batch) in enumerate(batches):
            self.run_iter(index, weights_batch, architecture_batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1


@LOOPS.register_module()
class IterBilevelTrainLoop(_BilevelLoop, IterBasedTrainLoop):
    """:class:`BilevelTrainLoop` for iteration-based runs, such as those of mmseg.

    It takes the same arguments, but ``max_iters`` in place of ``max_epochs``, and
    ``fast_forward_on_resume``. The two parts are separate streams. With an ``InfiniteSampler``
    neither ends; with a sampler of epochs each restarts in its own next order.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dataloader_iterator = EndlessBatches(self.dataloader, self.architecture_dataloader)

    def run_iter(self, data_batch: tuple[Sequence[dict], Sequence[dict]]) -> None:
        """Update the gates, then the weights, by the batches of their parts."""
        super().run_iter(self._iter, *data_batch)

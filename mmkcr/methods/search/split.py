"""Two data loaders over disjoint parts of one training set."""

import copy
from collections.abc import Iterator, Mapping, Sequence

import torch
from mmengine.dataset import InfiniteSampler
from mmengine.registry import DATA_SAMPLERS, DATASETS
from mmengine.runner import Runner
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from mmkcr.datasets.part import DatasetPart, sample_sources
from mmkcr.engine.resume.batches import source_sampler


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

    All indices of a sample (``sources``, see :func:`sample_sources`; by default each index is its
    own sample) go to one part.

    Returns:
        tuple[list[int], list[int]]: Ascending indices for the weights and for the architecture.

    Raises:
        ValueError: The fraction is not within (0, 1), or a part is empty.
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

    Both have the settings of ``train_dataloader``, the config. An epoch is one pass over the
    weights' part; the other loader cycles and yields at least as many batches. ``endless`` loaders,
    of runs that count iterations, each go through their own part at their own pace.

    Raises:
        TypeError: ``config`` is not a dict.
        ValueError: A part is smaller than a batch of all ranks, or the
            sampler of a run of epochs never ends.
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
    for name, part in zip(('weights', 'architecture'), parts):
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

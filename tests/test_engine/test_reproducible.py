"""What a loader yields depends on seed, epoch and position, and on nothing else."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmdet.datasets.samplers import AspectRatioBatchSampler
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from mmkcr.engine.resume import batches as reproducible
from mmkcr.engine.resume.batches import (
    DrawnBatch,
    derive_seed,
    make_reproducible,
    seed_everything,
    set_epoch,
    skip_batches,
)


class Noisy:
    """Every access draws from all three random states."""

    metainfo = dict(classes=('a', 'b'))

    def __init__(self, size=13):
        self.size = size

    def __len__(self):
        return self.size

    def get_data_info(self, idx):
        return dict(width=1 + idx % 3, height=2)

    def __getitem__(self, idx):
        assert type(idx) is int
        return idx, random.random(), np.random.rand(), torch.rand(()).item()


def batches(sampler, epoch, num_workers=0, seed=5, stream='train', limit=None, batch_size=4):
    dataset = getattr(sampler, 'dataset', None) or Noisy()
    loader = DataLoader(dataset, sampler=sampler, batch_size=batch_size, num_workers=num_workers,
                        collate_fn=list)
    return read(loader, epoch, seed, stream, limit)


def read(loader, epoch, seed=5, stream='train', limit=None):
    make_reproducible(loader, seed, stream)
    set_epoch(loader, epoch)
    seed_everything(np.random.randint(99))  # whatever happened before must not matter
    return [batch for batch, _ in zip(loader, range(limit or len(loader)))]


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2), st.integers(1, 20), st.integers(0, 3), st.booleans())
def test_independent_of_workers_and_history(num_workers, size, epoch, persistent):
    dataset = Noisy(size)
    expected = batches(DefaultSampler(dataset, seed=1), epoch)
    loader = DataLoader(Noisy(size), sampler=DefaultSampler(Noisy(size), seed=1), batch_size=4,
                        num_workers=num_workers, collate_fn=list,
                        persistent_workers=persistent and num_workers > 0)
    make_reproducible(loader, 5, 'train')
    for earlier in range(epoch + 1):
        set_epoch(loader, earlier)
        found = list(loader)
    assert found == expected


def test_differs_by_seed_epoch_stream_and_draw():
    sampler = DefaultSampler(Noisy(), shuffle=False)
    runs = [batches(sampler, **kwargs) for kwargs in
            (dict(epoch=0), dict(epoch=1), dict(epoch=0, seed=6), dict(epoch=0, stream='other'))]
    noise = [sample[1:] for run in runs for batch in run for sample in batch]
    assert len(set(noise)) == len(noise) == 4 * 13


@pytest.mark.parametrize('make', [DefaultSampler, InfiniteSampler])
@pytest.mark.parametrize('world_size', [2, 3])
def test_ranks_share_the_samples_of_one_process(monkeypatch, make, world_size):
    """Step by step, the union over ranks is the global batch of one process."""

    def sampled(rank, world, batch_size):
        for module in (reproducible, __import__('mmengine.dataset.sampler', fromlist=['x'])):
            monkeypatch.setattr(module, 'get_dist_info', lambda: (rank, world))
        dataset = Noisy(6 * world_size)
        return batches(make(dataset, seed=1), 2, limit=3, batch_size=batch_size)

    single = sampled(0, 1, 2 * world_size)
    ranks = [sampled(rank, world_size, 2) for rank in range(world_size)]
    for step, batch in enumerate(single):
        assert sorted(sum((rank[step] for rank in ranks), [])) == sorted(batch)


def test_sampler_by_global_random_state_is_fixed_too():
    first, again = (batches(RandomSampler(range(13)), 1) for _ in range(2))
    assert first == again


@pytest.mark.parametrize('num_workers', [0, 2])
@pytest.mark.parametrize('passed', [0, 1])
def test_a_pass_that_was_left_early_does_not_change_the_next(num_workers, passed):
    """Of the gates' loader in a search; `zip` leaves it before its buckets are emptied."""

    def loader():
        sampler = AspectRatioBatchSampler(DefaultSampler(Noisy(40), seed=1), batch_size=4)
        loader = DataLoader(Noisy(40), batch_sampler=sampler, num_workers=num_workers,
                            collate_fn=list)
        make_reproducible(loader, 5, 'train')
        return loader

    def epoch(loader, number):
        set_epoch(loader, number)
        skip_batches(loader, passed if number == 1 else 0)
        return [batch for _, batch in zip(range(3), loader)]

    whole, resumed = loader(), loader()
    expected = [epoch(whole, number) for number in range(4)]
    assert [epoch(resumed, number) for number in (1, 2, 3)] == expected[1:]
    assert all(len(batch) == len({sample[0] for sample in batch}) == 4
               for batches in expected for batch in batches)


def test_everything_else_is_as_before():
    dataset = Noisy()
    sampler = DefaultSampler(dataset)
    loader = DataLoader(dataset, sampler=sampler, batch_size=4)
    batches = loader.batch_sampler
    make_reproducible(loader, 5, 'train')
    make_reproducible(loader, 5, 'train')
    assert type(dataset) is Noisy and type(sampler) is DefaultSampler and type(loader) is DataLoader
    assert loader.dataset is dataset and loader.sampler is sampler
    assert loader.batch_sampler.batches is batches and loader.batch_sampler.batch_size == 4
    assert len(loader) == len(batches) == 4


def test_a_drawn_batch_pickles_and_sets_the_random_states():
    batch = DrawnBatch([3, (1, 2)], ('train', 2**62), range(5, 9, 2))
    again = pickle.loads(pickle.dumps(batch))
    torch.manual_seed(0)
    pickle.dumps(batch), copy.deepcopy(batch)  # which must not draw
    state = torch.get_rng_state()
    torch.manual_seed(0)
    assert torch.equal(state, torch.get_rng_state())
    drawn = [[(index, torch.rand(()).item()) for index in one] for one in (batch, again)]
    assert drawn[0] == drawn[1] and [index for index, _ in drawn[0]] == [3, (1, 2)]
    assert drawn[0][0][1] != drawn[0][1][1]


@given(st.lists(st.integers(), max_size=3), st.lists(st.integers(), max_size=3))
def test_seeds_are_distinct_and_in_range(left, right):
    first, second = derive_seed(*left), derive_seed(*right)
    assert 0 <= first < 2**63
    assert (first == second) == (left == right)


def test_iterable_dataset_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield 1

    with pytest.raises(TypeError, match='map-style dataset .* `Stream` in the train loader'):
        make_reproducible(DataLoader(Stream()), 0, 'train')

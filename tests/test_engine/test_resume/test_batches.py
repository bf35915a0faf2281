"""Endless batches go on anywhere as if everything before had been read, and read none of it."""

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmdet.datasets.samplers import AspectRatioBatchSampler
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import BatchSampler, DataLoader

from mmkcr.engine.resume.batches import EndlessBatches, make_reproducible

SAMPLERS = dict(infinite=InfiniteSampler, epochs=DefaultSampler)
BATCH_SAMPLERS = dict(slices=BatchSampler, shapes=AspectRatioBatchSampler)


class Counted:
    """Every access is random and counted."""

    def __init__(self, size):
        self.size, self.loaded = size, 0

    def __len__(self):
        return self.size

    def get_data_info(self, idx):
        return dict(width=1 + idx % 3, height=2)

    def __getitem__(self, idx):
        self.loaded += 1
        return idx, random.random()


def stream(size, sampler, batch_sampler, num_workers=0, stream='train'):
    dataset = Counted(size)
    batches = BATCH_SAMPLERS[batch_sampler](SAMPLERS[sampler](dataset, seed=2), 3, False)
    loader = DataLoader(dataset, batch_sampler=batches, collate_fn=list, num_workers=num_workers,
                        persistent_workers=num_workers > 0)
    make_reproducible(loader, 5, stream)
    return EndlessBatches(loader)


@pytest.mark.parametrize('sampler', SAMPLERS)
@pytest.mark.parametrize('batch_sampler', BATCH_SAMPLERS)
@settings(max_examples=20, deadline=None)
@given(skipped=st.integers(0, 40), size=st.integers(1, 9))
def test_goes_on_where_it_was(sampler, batch_sampler, skipped, size):
    whole, later = (stream(size, sampler, batch_sampler) for _ in range(2))
    expected = list(itertools.islice(whole, skipped + 7))[skipped:]
    later.skip_iter(skipped)
    assert later.loaders[0].dataset.loaded == 0
    assert list(itertools.islice(later, 7)) == expected


@pytest.mark.parametrize('skipped', [0, 2])
def test_epochs_without_a_batch_do_not_go_on_for_ever(skipped):
    batches = EndlessBatches(DataLoader(Counted(2), batch_size=3, drop_last=True))
    batches.skip_iter(skipped)
    with pytest.raises(ValueError, match='at least one batch in an epoch, .* the 2 samples'):
        next(batches)


@pytest.mark.parametrize('sampler', SAMPLERS)
def test_with_workers(sampler):
    expected = list(itertools.islice(stream(7, sampler, 'shapes'), 12))[5:]
    later = stream(7, sampler, 'shapes', num_workers=2)
    later.skip_iter(5)
    assert list(itertools.islice(later, 7)) == expected


def test_every_pass_has_an_order_of_its_own():
    drawn = [index for batch in itertools.islice(stream(9, 'epochs', 'slices'), 9)
             for index, _ in batch]
    passes = [tuple(drawn[start:start + 9]) for start in (0, 9, 18)]
    assert all(sorted(one) == list(range(9)) for one in passes) and len(set(passes)) == 3


def test_pairs_advance_together():
    def pairs():
        return EndlessBatches(*stream(7, 'infinite', 'slices').loaders,
                              *stream(4, 'epochs', 'slices', stream='other').loaders)

    expected = list(itertools.islice(pairs(), 14))
    later = pairs()
    later.skip_iter(9)
    assert list(itertools.islice(later, 5)) == expected[9:]


def test_a_long_way_takes_seconds():
    """The last iteration of 160000 with 2 images a GPU; loading them would take hours."""
    later = stream(20210, 'infinite', 'slices')
    began = time.process_time()
    later.skip_iter(16000)
    assert time.process_time() - began < 3  # 0.3 s: 3 s for 160000
    assert later.loaders[0].dataset.loaded == 0

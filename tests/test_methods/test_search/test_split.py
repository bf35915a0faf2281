"""The two parts of a search set and the order in which they are read."""

import copy
import pickle

import mmdet.datasets
import mmseg.datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.dataset import BaseDataset, ConcatDataset, DefaultSampler, RepeatDataset

from mmkcr.datasets import DatasetPart
from mmkcr.datasets.part import sample_sources
from mmkcr.methods.search.bilevel import CycledSampler, split_indices


@given(st.integers(2, 300), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_parts_are_disjoint_complete_and_seeded(total, fraction, seed):
    if not 0 < round(total * fraction) < total:
        with pytest.raises(ValueError, match=f'into two parts, found {total} samples'):
            split_indices(total, fraction, seed)
        return
    weights, architecture = split_indices(total, fraction, seed)
    assert sorted(weights + architecture) == list(range(total))
    assert len(architecture) == round(total * fraction)
    assert (weights, architecture) == split_indices(total, fraction, seed)


def test_split_depends_on_the_seed_and_is_not_the_tail():
    splits = {tuple(split_indices(100, 0.3, seed)[1]) for seed in range(5)}
    assert len(splits) == 5 and not any(split == tuple(range(70, 100)) for split in splits)


@pytest.mark.parametrize('fraction', [0, 1, -0.3, 1.5, float('nan')])
def test_fraction_out_of_range(fraction):
    with pytest.raises(ValueError, match=r'architecture_fraction` within \(0, 1\), found'):
        split_indices(10, fraction, 0)


class Numbers(BaseDataset):
    def load_data_list(self):
        return [dict(number=number) for number in range(20)]


def test_no_sample_of_a_repeated_data_set_is_in_both_parts():
    repeated = RepeatDataset(Numbers(), 6)
    sources = sample_sources(repeated)
    assert [repeated.get_data_info(index)['number'] for index in range(120)] == list(sources)
    parts = split_indices(120, 0.3, 0, sources)
    assert [len(part) for part in parts] == [84, 36] and sorted(sum(parts, [])) == list(range(120))
    weights, architecture = ({sources[index] for index in part} for part in parts)
    assert not weights & architecture
    part = DatasetPart(repeated, [3, 41, 23])
    assert list(sample_sources(DatasetPart(part, [2, 0]))) == [3, 3]
    joined = ConcatDataset([dict(type=RepeatDataset, times=2, dataset=dict(type=Numbers)),
                            Numbers()])
    assert list(sample_sources(joined)) == [*range(20), *range(20), *range(20, 40)]


class Mosaic:
    """Keeps the numbers of the images that it mixes."""

    def get_indexes(self, dataset):
        return np.random.randint(len(dataset), size=3).tolist()

    get_indices = get_indexes

    def __call__(self, results):
        mixed = [results['number'], *(one['number'] for one in results['mix_results'])]
        return dict(results, mixed=mixed)


@pytest.mark.parametrize('host', [mmdet.datasets, mmseg.datasets])
@pytest.mark.parametrize('times', [1, 3])
def test_images_of_one_part_are_mixed_with_each_other_only(host, times):
    """A mosaic drew its partners from the whole set, so each part saw the other's images."""
    whole = host.MultiImageMixDataset(dict(type=Numbers), [])
    whole.pipeline, whole.pipeline_types = [Mosaic()], ['Mosaic']
    if times > 1:
        whole.dataset = RepeatDataset(whole.dataset, times)
        whole.num_samples = 20 * times
    sources = sample_sources(whole)
    parts = [DatasetPart(whole, indices) for indices in split_indices(len(whole), 0.3, 0, sources)]
    seen = [{number for index in range(len(part)) for number in part[index]['mixed']}
            for part in parts]
    assert not seen[0] & seen[1] and len(seen[0]) == 14 and len(seen[1]) == 6
    assert [part[0]['number'] for part in parts] == \
        [sources[part.indices[0]] for part in parts]
    part = DatasetPart(parts[0], range(5))  # a part of a part
    assert {number for one in part for number in one['mixed']} <= seen[0]
    assert len(whole) == 20 * times and len(set(sources)) == 20
    # as hooks do that end the mixing
    parts[0].update_skip_type_keys(['Mosaic'])
    assert not any('mixed' in part[0] for part in parts)


def test_mixing_inside_of_another_set_is_refused():
    inside = dict(type=mmdet.datasets.MultiImageMixDataset, dataset=dict(type=Numbers),
                  pipeline=[])
    with pytest.raises(ValueError, match='expected `MultiImageMixDataset` as the outermost data '
                       'set, .* found it in a `RepeatDataset`$'):
        DatasetPart(RepeatDataset(inside, 2), range(3))
    DatasetPart(RepeatDataset(Numbers(), 2), range(3))


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(1, 70), st.integers(0, 5))
def test_cycled_sampler_passes_over_everything(size, num_samples, epoch):
    sampler = CycledSampler(range(size), dict(type='DefaultSampler', shuffle=True), num_samples, 7)
    sampler.set_epoch(epoch)
    drawn = list(sampler)
    assert len(drawn) == len(sampler) == num_samples and drawn == list(sampler)
    for start in range(0, num_samples, size):
        one_pass = drawn[start:start + size]
        assert len(set(one_pass)) == len(one_pass)
    if num_samples == 3 * size and size > 5:
        assert drawn[:size] != drawn[size:2 * size] != drawn[2 * size:]


def test_cycled_sampler_orders_are_not_repeated_in_the_next_epoch():
    sampler = CycledSampler(range(30), dict(type='DefaultSampler'), 60, 7)
    orders = set()
    for epoch in range(4):
        sampler.set_epoch(epoch)
        drawn = list(sampler)
        orders |= {tuple(drawn[:30]), tuple(drawn[30:])}
    assert len(orders) == 8
    sampler.seed = 8
    assert sampler.sampler.seed == sampler.seed == 8
    assert isinstance(sampler.sampler, DefaultSampler)


class Whole:
    metainfo = dict(classes=('a', ))
    pipeline = 'train'

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index, self.pipeline

    def get_data_info(self, index):
        return dict(index=index)

    def get_cat_ids(self, index):
        return [index]

    def get_gt_labels(self):
        return list(range(10, 20))


def test_part_is_a_dataset_like_the_whole():
    whole = Whole()
    part = DatasetPart(whole, [7, 2])
    assert len(part) == 2 and [part[i] for i in range(2)] == [(7, 'train'), (2, 'train')]
    assert part.get_data_info(1) == dict(index=2) and part.get_cat_ids(0) == [7]
    assert part.metainfo == whole.metainfo and part.get_gt_labels().tolist() == [17, 12]
    assert copy.deepcopy(part).dataset is whole and pickle.loads(pickle.dumps(part))[0][0] == 7
    part.pipeline = 'later'  # as hooks that switch transforms do
    assert whole.pipeline == 'later'
    with pytest.raises(AttributeError):
        getattr(part, 'unknown')  # noqa: B009

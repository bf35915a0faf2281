"""Stratified folds of a stratified share."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.dataset import BaseDataset, RepeatDataset

from lab.folds import FoldPart, fold_indices
from mmkcr.datasets import DatasetPart


@st.composite
def problems(draw):
    classes, folds = draw(st.integers(2, 5)), draw(st.integers(2, 5))
    counts = [draw(st.integers(4 * folds, 60)) for _ in range(classes)]
    labels = np.repeat(np.arange(classes), counts)
    np.random.default_rng(draw(st.integers(0, 99))).shuffle(labels)
    return labels, draw(st.sampled_from([0.5, 0.75, 1.0])), folds, draw(st.integers(0, 99))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_folds_are_a_stratified_partition_of_one_share(problem):
    labels, fraction, folds, seed = problem
    parts = [fold_indices(labels, fraction, folds, fold, seed) for fold in range(folds)]
    share = np.union1d(*parts[0])
    assert abs(len(share) - fraction * len(labels)) <= 1
    held_out = np.concatenate([out for _, out in parts])
    assert np.array_equal(np.sort(held_out), share)  # every sample is held out once
    for train, out in parts:
        assert np.array_equal(np.sort(np.concatenate([train, out])), share)
        assert (np.diff(train) > 0).all() and (np.diff(out) > 0).all()
        for label in np.unique(labels):
            of_label = (labels[share] == label).sum()
            assert abs(of_label - fraction * (labels == label).sum()) <= 1
            assert abs((labels[out] == label).sum() - of_label / folds) < 1
    again = fold_indices(labels, fraction, folds, 0, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts[0], again))


@pytest.mark.parametrize('args, message', [
    ((0, 5, 0, 0), r'`fraction` of the training set within \(0, 1\], found 0'),
    ((1.5, 5, 0, 0), 'found 1.5'),
    ((0.5, 1, 0, 0), 'at least 2 folds'),
    ((0.5, 5, 5, 0), 'found fold 5 of 5'),
    ((0.1, 5, 0, 0), 'at least 5 samples of every class for 5 folds, found a class with 2'),
    ((0.01, 2, 0, 0), 'of which a stratified 1% can be drawn, found 40 samples'),
])
def test_refusals(args, message):
    with pytest.raises(ValueError, match=message):
        fold_indices(np.repeat([0, 1], 20), *args)


def test_a_class_that_the_share_leaves_out_is_refused():
    with pytest.raises(ValueError, match='found a class with 0 in 10% of the training set'):
        fold_indices(np.repeat([0, 1, 2], [100, 100, 3]), 0.1, 2, 0, 0)


class Labelled(BaseDataset):
    """A classification data set without images."""

    METAINFO = dict(classes=('a', 'b'))

    def __init__(self, labels=(0, 1) * 20):
        self.labels = labels
        super().__init__(serialize_data=False)

    def load_data_list(self):
        return [dict(gt_label=label) for label in self.labels]


def test_part_of_a_data_set():
    whole = Labelled()
    train, out = (FoldPart(whole, 0.5, 2, 1, held_out, seed=3) for held_out in (False, True))
    assert len(train) == len(out) == 10 and not set(train.indices) & set(out.indices)
    for part in (train, out):
        for side in (part, DatasetPart(part, [3, 5]), FoldPart(part, 1., 2)):  # e.g. of a search
            assert side.get_gt_labels().tolist() == [one['gt_label'] for one in side]
    for labels in ([[0, 1]] * 20, [0, [0, 1], [1]] * 20, [None] * 20):
        with pytest.raises(TypeError, match='one integer `gt_label` per sample'):
            FoldPart(Labelled(labels))


def test_no_copy_of_a_training_sample_is_held_out():
    """Of a repeated set most samples were on both sides."""
    once, thrice = Labelled(), RepeatDataset(Labelled(), 3)
    for held_out in (False, True):
        part, repeated = (FoldPart(whole, 0.5, 2, 1, held_out, seed=3) for whole in (once, thrice))
        assert len(repeated) == 3 * len(part) == 30
        assert {index % 40 for index in repeated.indices} == set(part.indices)
        assert repeated.get_gt_labels().tolist() == [index % 2 for index in repeated.indices]

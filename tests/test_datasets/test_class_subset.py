"""Class subsets: which samples and labels remain, refusals, the ImageNet search set."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.dataset import BaseDataset, RepeatDataset
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from PIL import Image

import mmkcr  # noqa: F401  (makes torchvision importable for the hosts)
from mmkcr.datasets import ClassSubset
from mmkcr.registry import DATASETS

SEARCH_SET = Path(__file__).parents[2] / 'configs' / '_base_' / 'datasets' / 'imagenet100_bs64.py'


@DATASETS.register_module()
class LabelledNumbers(BaseDataset):
    """Sample i has the i-th of the given labels; no files."""

    def __init__(self, labels, classes=None, **kwargs):
        self.labels = labels
        metainfo = dict(classes=classes) if classes else None
        # serialising collects garbage every time, which is slow beside torch
        super().__init__(metainfo=metainfo, serialize_data=False, **kwargs)

    def load_data_list(self):
        """One annotation for each label."""
        return [dict(number=i, gt_label=label) for i, label in enumerate(self.labels)]


def numbers(total, labels, **kwargs):
    """Data set of ``total`` named classes."""
    return LabelledNumbers(labels, [f'class {i}' for i in range(total)], **kwargs)


@st.composite
def cases(draw):
    """Labels of all of up to 8 classes, a subset's size and a seed."""
    total = draw(st.integers(1, 8))
    more = draw(st.lists(st.integers(0, total - 1), max_size=20))
    labels = draw(st.permutations([*range(total), *more]))
    return total, labels, draw(st.integers(1, total)), draw(st.integers(0, 2**32))


@given(cases())
def test_subset_keeps_all_the_samples_of_its_classes(case):
    total, labels, kept, seed = case
    source = numbers(total, labels)
    subset = ClassSubset(source, kept, seed)
    classes = subset.metainfo['classes']
    assert len(set(classes)) == kept and list(classes) == sorted(classes)
    expected = [i for i, label in enumerate(labels) if f'class {label}' in classes]
    assert [sample['number'] for sample in subset] == expected
    for sample in subset:  # labels point to the same names as before
        assert classes[sample['gt_label']] == f'class {labels[sample["number"]]}'
    assert set(subset.get_gt_labels()) == set(range(kept))
    assert [subset.get_cat_ids(i)[0] for i in range(len(subset))] == list(subset.get_gt_labels())
    assert [sample['gt_label'] for sample in source] == list(labels)  # untouched


@given(cases(), st.randoms())
def test_draw_depends_on_seed_and_class_count_only(case, random):
    total, labels, kept, seed = case
    shuffled = sorted(labels, key=lambda _: random.random())
    first = ClassSubset(numbers(total, labels), kept, seed)
    np.random.seed(random.randrange(1000))
    second = ClassSubset(numbers(total, shuffled[:1] + shuffled), kept, seed)
    assert first.metainfo['classes'] == second.metainfo['classes']
    if kept > 1:
        smaller = ClassSubset(numbers(total, labels), kept - 1, seed).metainfo['classes']
        assert set(smaller) < set(first.metainfo['classes'])


def test_seeds_differ():
    drawn = {ClassSubset(numbers(50, range(50)), 5, seed).metainfo['classes']
             for seed in range(20)}
    assert len(drawn) == 20


def test_lazy_and_built_from_a_config():
    cfg = dict(type='mmkcr.ClassSubset', num_classes=2, lazy_init=True,
               dataset=dict(type='mmkcr.LabelledNumbers', labels=[0, 1, 2], lazy_init=True))
    subset = DATASETS.build(cfg)
    assert len(subset) == 2 and len(subset.metainfo['classes']) == 2  # names from the labels


class FoundNumbers(LabelledNumbers):
    """Finds its classes with its samples, as ImageNet's folders do."""

    METAINFO = dict(dataset_type='numbers')

    def load_data_list(self):
        self._metainfo['classes'] = ('ant', 'bee', 'cat')
        return super().load_data_list()


@pytest.mark.parametrize('lazy', [(True, False), (False, True), (True, True)])
def test_classes_have_names_before_samples_are_read(lazy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'numbers').mkdir()  # a text of the meta information is no path
    whole, subset = lazy
    subset = ClassSubset(FoundNumbers([0, 1, 2], lazy_init=whole), 2, lazy_init=subset)
    expected = [('ant', 'bee', 'cat')[i] for i in ClassSubset(numbers(3, [0, 1, 2]), 2)
                .source_classes]
    assert RepeatDataset(subset, 2).metainfo == dict(dataset_type='numbers',
                                                     classes=tuple(expected))


@pytest.mark.parametrize('labels, kept, error, message', [
    ([0, 1, 2], 0, ValueError, 'to be 1 to 3, all classes of the data set, found `0`'),
    ([0, 1, 2], 4, ValueError, 'to be 1 to 3, all classes of the data set, found `4`'),
    ([[0, 1], [1]], 1, TypeError, r'`\[0, 1\]`')], ids=['none', 'more', 'several'])
def test_refusals(labels, kept, error, message):
    with pytest.raises(error, match=message):
        ClassSubset(numbers(3, labels), kept)


def test_no_sample_of_the_drawn_classes():
    absent = ClassSubset(numbers(9, range(9)), 1).source_classes[0]
    with pytest.raises(ValueError, match=rf'`\[{absent}\]`, found none among 8 samples'):
        ClassSubset(numbers(9, [i for i in range(9) if i != absent]), 1)


def test_search_set_on_imagenet(tmp_path):
    """The config, on a folder in ImageNet's format with one image a class."""
    (tmp_path / 'meta').mkdir()
    for split in ('train', 'val'):
        lines = [f'a.png {label}' for label in range(1000)]
        (tmp_path / 'meta' / f'{split}.txt').write_text('\n'.join(lines))
        (tmp_path / split).mkdir()
        Image.fromarray(np.zeros((300, 300, 3), np.uint8)).save(tmp_path / split / 'a.png')
    init_default_scope('mmpretrain')
    cfg = Config.fromfile(SEARCH_SET)
    parts = []
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.update(num_workers=0, batch_size=2)
        loader.dataset.dataset.data_root = str(tmp_path)
        parts.append(Runner.build_dataloader(loader))
    classes = [part.dataset.metainfo['classes'] for part in parts]
    assert classes[0] == classes[1] and len(parts[0].dataset) == 100
    batch = next(iter(parts[0]))
    assert batch['inputs'][0].shape == (3, 224, 224)
    assert 0 <= batch['data_samples'][0].gt_label.item() < cfg.data_preprocessor.num_classes == 100


def test_another_sample_takes_the_place_of_a_rejected_one():
    whole = numbers(3, [0, 1, 2] * 4, pipeline=[
        lambda info: None if info['number'] < 6 else info['number']])
    subset = ClassSubset(whole, 2)
    assert {subset[i] for _ in range(20) for i in range(len(subset))} == {
        i for i in range(6, 12) if i % 3 in subset.source_classes}
    with pytest.raises(Exception, match='Cannot find valid image after 1000'):  # MMEngine's
        ClassSubset(numbers(2, [0, 1], pipeline=[lambda info: None]), 2)[0]
    with pytest.raises(TypeError, match='expected a `BaseDataset` .* found a `RepeatDataset`'):
        ClassSubset(RepeatDataset(whole, 2), 2)

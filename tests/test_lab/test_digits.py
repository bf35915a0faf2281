"""Digits on disk: no leak, determinism, idempotence, refusals, the command."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lab.digit_scenes import INK
from lab.digit_sources import source_digits, split_sources
from lab.digits import STAMP, DigitsOptions, write_digits
from lab.folders import folder_digest, rebuild_folder

COMMAND = Path(__file__).parents[2] / 'tools' / 'dataset_converters' / 'digits.py'


def ink_crops():
    """Grey values within the box of a digit's ink, to the sources that have them."""
    crops = {}
    for index, source in enumerate(source_digits()[0]):
        rows, columns = np.nonzero(source >= INK)
        crop = source[rows.min():rows.max() + 1, columns.min():columns.max() + 1]
        crops.setdefault((crop.shape, crop.tobytes()), set()).add(index)
    return crops


def sources_of(image, box, crops):
    """Sources whose enlarged crop is what the image shows in the box."""
    x, y, width, height = box
    shown = np.round(image[y:y + height, x:x + width] / 255 * 16).astype(np.uint8)
    found = set()
    for times in range(1, 7):
        small = np.ascontiguousarray(shown[::times, ::times])
        enlarged = small.repeat(times, 0).repeat(times, 1)
        if enlarged.shape == shown.shape and np.array_equal(enlarged, shown):
            found |= crops.get((small.shape, small.tobytes()), set())
    return found


def test_no_digit_is_in_both_parts(digits_root):
    images, labels = source_digits()
    known = {image.tobytes(): index for index, image in enumerate(images)}
    seen = {}
    for part in ('train', 'val'):
        for path in (digits_root / part).rglob('*.png'):
            small = np.asarray(Image.open(path))[::4, ::4]
            index = known[np.round(small / 255 * 16).astype(np.uint8).tobytes()]
            assert index not in seen, f'{path} and {seen[index]} show the same digit'
            assert path.parent.name == str(labels[index])
            seen[index] = path
    assert len(seen) == 1797


def test_scenes_show_digits_of_their_part_only(digits_root):
    crops, split, count = ink_crops(), split_sources(), 0
    for part, name in (('train', 'training'), ('val', 'validation')):
        own = set(split[part].tolist())
        coco = json.loads(
            (digits_root / f'scenes/annotations/instances_{name}.json').read_text())
        files = {image['id']: image['file_name'] for image in coco['images']}
        for annotation in coco['annotations']:
            path = digits_root / 'scenes' / 'images' / name / files[annotation['image_id']]
            found = sources_of(np.asarray(Image.open(path)), annotation['bbox'], crops)
            assert found and found <= own, (path, annotation['bbox'], found - own)
            count += 1
    assert count >= 40


def test_same_options_same_bytes(digits_root, digits_options, tmp_path):
    """Other options replace the folder."""
    again = tmp_path / 'again'
    write_digits(again, digits_options)
    assert folder_digest(again, STAMP) == folder_digest(digits_root, STAMP)
    assert write_digits(again, replace(digits_options, seed=1, size=16, val_scenes=3))
    assert {path.name for path in (again / 'train').rglob('*.png')} != {
        path.name for path in (digits_root / 'train').rglob('*.png')}
    assert Image.open(next((again / 'val' / '0').iterdir())).size == (16, 16)
    assert len(list((again / 'scenes' / 'images' / 'validation').iterdir())) == 3


def write_small(folder):
    """In the place of the digits: what is there is of :mod:`lab.folders`."""
    (folder / 'train').mkdir()
    (folder / 'train/3.png').write_text('three')
    (folder / 'labels.json').write_text('{"3": "three"}')


def rebuild(root, write=write_small, **options):
    return rebuild_folder(root, write, r'train/\d\.png|labels\.json', STAMP, options)


@pytest.fixture
def small(tmp_path):
    """A folder that a test may damage."""
    assert rebuild(tmp_path / 'small')
    return tmp_path / 'small'


def snapshot(root):
    """Modification times and inodes of everything."""
    return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in root.rglob('*')}


def test_second_call_does_nothing(small):
    before = snapshot(small.parent)
    assert not rebuild(small)
    assert snapshot(small.parent) == before


@pytest.mark.parametrize('name, damage', [
    ('train/3.png', Path.unlink), (STAMP, Path.unlink),
    ('labels.json', lambda path: path.write_text('{"3": ')),
    (STAMP, lambda path: path.write_text('{"options"'))])
def test_incomplete_folder_is_rebuilt(small, name, damage):
    before = folder_digest(small, STAMP)
    damage(small / name)
    assert rebuild(small) and folder_digest(small, STAMP) == before
    assert [path.name for path in small.parent.iterdir()] == ['small']  # nothing left behind
    assert not rebuild(small)


def test_foreign_files_are_not_touched(small):
    (small / 'train/mine.txt').write_text('precious')
    before = snapshot(small.parent)
    with pytest.raises(FileExistsError, match='mine.txt'):
        rebuild(small, seed=1)
    assert snapshot(small.parent) == before


def test_failed_writing_keeps_what_was_there(small):
    def fail(folder):
        write_small(folder)
        raise OSError('no space left')
    before = snapshot(small)
    with pytest.raises(OSError, match='no space left'):
        rebuild(small, fail, seed=1)
    assert snapshot(small) == before
    assert [path.name for path in small.parent.iterdir()] == ['small']


@pytest.mark.parametrize('name, value', [
    ('size', 30), ('size', 0), ('canvas', 63), ('train_scenes', 0), ('val_scenes', -1),
    ('seed', -1), ('val_ratio', 0.), ('val_ratio', 1.)])
def test_option_out_of_range(name, value):
    with pytest.raises(ValueError, match=f'`{name}`.*`{value}`'):
        DigitsOptions(**{name: value})


def test_command(tmp_path, monkeypatch, capfd):
    """Refused in one sentence, and without a file; complete; with a slice of training held out."""
    def run(*args):
        monkeypatch.setattr(sys, 'argv', ['digits.py', *args])
        runpy.run_path(str(COMMAND), run_name='__main__')
        return capfd.readouterr().out

    def count(part):
        return len(list(Path('data/digits', part).rglob('*.png')))

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run('--size', '30')
    stderr = capfd.readouterr().err
    assert ended.value.code and '`30`' in stderr and len(stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())
    args = ('--train-scenes', '3', '--val-scenes', '2', '--size', '8')
    assert 'wrote' in run(*args) and 'nothing to do' in run(*args)
    assert count('val') == 360

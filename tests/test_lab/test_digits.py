"""Digits on disk: no leak, determinism, idempotence, refusals, the command."""

import json
import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lab.digit_scenes import INK
from lab.digit_sources import source_digits, split_sources
from lab.digits import STAMP, DigitsOptions, write_digits
from lab.folders import folder_digest

COMMAND = Path(__file__).parents[2] / 'tools' / 'dataset_converters' / 'digits.py'


def content(root):
    """Digest of all the files but the stamp."""
    return folder_digest(root, STAMP)


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
    write_digits(tmp_path / 'again', digits_options)
    assert content(tmp_path / 'again') == content(digits_root)
    write_digits(tmp_path / 'again', replace(digits_options, seed=1))
    assert content(tmp_path / 'again') != content(digits_root)


@pytest.fixture
def copy(digits_root, tmp_path):
    """A copy of the digits that a test may damage."""
    return Path(shutil.copytree(digits_root, tmp_path / 'digits'))


def snapshot(root):
    """Modification times and inodes of everything."""
    return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in root.rglob('*')}


def test_second_call_does_nothing(copy, digits_options):
    before = snapshot(copy.parent)
    assert not write_digits(copy, digits_options)
    assert snapshot(copy.parent) == before


def remove_a_file(root):
    """Leave out one image."""
    next((root / 'train' / '3').iterdir()).unlink()


def truncate_a_file(root):
    """Keep half of a json file."""
    path = root / 'scenes' / 'annotations' / 'instances_training.json'
    path.write_bytes(path.read_bytes()[:500])


def remove_the_stamp(root):
    """As if the writing had not ended."""
    (root / STAMP).unlink()


def break_the_stamp(root):
    """Half a stamp."""
    (root / STAMP).write_text('{"options"')


@pytest.mark.parametrize(
    'damage', [remove_a_file, truncate_a_file, remove_the_stamp, break_the_stamp])
def test_incomplete_folder_is_rebuilt(copy, digits_root, digits_options, damage):
    damage(copy)
    assert write_digits(copy, digits_options)
    assert content(copy) == content(digits_root)
    assert [path.name for path in copy.parent.iterdir()] == ['digits']  # nothing left behind
    assert not write_digits(copy, digits_options)


def test_other_options_replace_the_folder(copy, digits_options):
    assert write_digits(copy, replace(digits_options, size=16, val_scenes=3))
    assert Image.open(next((copy / 'val' / '0').iterdir())).size == (16, 16)
    assert len(list((copy / 'scenes' / 'images' / 'validation').iterdir())) == 3


def test_foreign_files_are_not_touched(copy, digits_options):
    (copy / 'train' / '3' / 'mine.txt').write_text('precious')
    before = snapshot(copy.parent)
    with pytest.raises(FileExistsError, match='mine.txt'):
        write_digits(copy, replace(digits_options, seed=1))
    assert snapshot(copy.parent) == before


def test_failed_writing_keeps_what_was_there(copy, digits_options, monkeypatch):
    def fail(*_args):
        raise OSError('no space left')
    monkeypatch.setattr('lab.digits.write_scenes', fail)
    before = snapshot(copy)
    with pytest.raises(OSError, match='no space left'):
        write_digits(copy, replace(digits_options, seed=1))
    assert snapshot(copy) == before
    assert [path.name for path in copy.parent.iterdir()] == ['digits']


@pytest.mark.parametrize('name, value', [
    ('size', 30), ('size', 0), ('canvas', 63), ('train_scenes', 0), ('val_scenes', -1),
    ('seed', -1), ('val_ratio', 0.), ('val_ratio', 1.)])
def test_option_out_of_range(name, value):
    with pytest.raises(ValueError, match=f'`{name}`.*`{value}`'):
        DigitsOptions(**{name: value})


def test_command(tmp_path, monkeypatch, capsys):
    def run(*args):
        monkeypatch.setattr(sys, 'argv', ['digits.py', '--out', 'data/digits', *args])
        runpy.run_path(str(COMMAND), run_name='__main__')
        return capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    args = ('--train-scenes', '3', '--val-scenes', '2', '--size', '8')
    assert 'wrote' in run(*args)
    assert 'nothing to do' in run(*args)
    assert len(list((tmp_path / 'data/digits/val').rglob('*.png'))) == 360


def test_command_holds_out_a_slice_of_the_training_digits(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['digits.py', '--out', str(tmp_path / 'digits'),
                                      '--train-slice', '--train-scenes', '2', '--val-scenes', '2'])
    runpy.run_path(str(COMMAND), run_name='__main__')
    assert [len(list((tmp_path / 'digits' / part).rglob('*.png'))) for part in ('train', 'val')] \
        == [1149, 288]


def test_command_refuses_in_one_sentence(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'argv', [str(COMMAND), '--size', '30'])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(COMMAND), run_name='__main__')
    stderr = capfd.readouterr().err
    assert ended.value.code and '`30`' in stderr and len(stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())

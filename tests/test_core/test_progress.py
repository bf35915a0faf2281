"""Files of finished work are read by their own work alone, and as they were written."""

import json
import logging

import pytest
import torch

from mmkcr.core import Progress

KEY = dict(network='a', target='60%')


@pytest.fixture
def folder(tmp_path):
    """With two files of equal shapes."""
    progress = Progress(tmp_path / 'work', KEY)
    for name in ('first', 'second'):
        progress.save(f'{name}.pth', dict(weight=torch.randn(4, 4)))
    return tmp_path / 'work'


def test_every_byte_counts(folder, caplog):
    """A file with any bit flipped, cut anywhere or with more behind it is made anew."""
    path = folder / 'first.pth'
    content = path.read_bytes()
    changed = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1:]
               for at in range(0, len(content), 7)]
    changed += [content[:at] for at in range(0, len(content), 61)] + [content + b'\0']
    for damaged in changed:
        path.write_bytes(damaged)
        caplog.clear()
        assert Progress(folder, KEY).read('first.pth') is None
        assert 'is damaged: it is made anew' in caplog.text and not path.exists()
    assert Progress(folder, KEY).read('second.pth') is not None


def test_exchanged_files_and_files_of_other_work(folder, tmp_path):
    (folder / 'first.pth').write_bytes((folder / 'second.pth').read_bytes())
    assert Progress(folder, KEY).read('first.pth') is None
    other = Progress(tmp_path / 'other', dict(KEY, network='b'))
    other.save('second.pth', dict(weight=torch.zeros(4, 4)))
    (folder / 'second.pth').write_bytes((tmp_path / 'other/second.pth').read_bytes())
    assert Progress(folder, KEY).read('second.pth') is None


def test_work_with_another_key_begins_anew_and_says_so(folder, caplog):
    for key, differing in ((dict(KEY, target='50%'), 'target'), (KEY, 'a damaged key')):
        if key is KEY:
            (folder / 'key.json').write_text('[[')
        progress = Progress(folder, key)
        assert progress.read('first.pth') is None and progress.differing() == [differing]
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            progress.save('first.pth', dict(a=1))
        assert f'holds work of another call ({differing})' in caplog.text
        assert sorted(path.name for path in folder.iterdir()) == ['first.pth', 'key.json']
        assert json.loads((folder / 'key.json').read_text()) == key


def test_what_was_made_once_is_read(folder):
    calls = []

    def make():
        calls.append(1)
        return dict(value=torch.ones(2))

    for _ in range(2):
        progress = Progress(folder, dict(of='it'))
        assert torch.equal(progress.once('value', make)['value'], torch.ones(2))
    assert len(calls) == 1

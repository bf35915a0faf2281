"""Files that are complete or absent, and folders that one run has for itself."""

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from mmkcr.core import atomic_folder, atomic_write, locked, remove_stale

# of a fork, which has imported everything
FORK = multiprocessing.get_context('fork')


def _hold(folder, held):
    with locked(folder):
        held.set()
        time.sleep(60)


def hold(folder):
    """A process that has the folder."""
    held = FORK.Event()
    process = FORK.Process(target=_hold, args=(folder, held))
    process.start()
    assert held.wait(60)
    return process


def test_a_second_run_is_refused_by_name(tmp_path):
    owner = hold(tmp_path / 'run')
    try:
        with pytest.raises(ValueError, match=f'found that process {owner.pid} of '
                           f'`{re.escape(socket.gethostname())}` writes to it'), \
                locked(tmp_path / 'run'):
            pass
        assert (tmp_path / 'run/.lock').exists()  # the refused one took nothing away
    finally:
        owner.kill()
        owner.join()
    with locked(tmp_path / 'run'):  # a killed one leaves the file, which locks nobody out
        pass
    assert not (tmp_path / 'run/.lock').exists()


def test_a_lock_that_is_a_link_overwrites_nothing(tmp_path):
    (tmp_path / 'mine.txt').write_text('kept')
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / '.lock').symlink_to(tmp_path / 'mine.txt')
    with pytest.raises(OSError, match='symbolic links.*lock'), locked(tmp_path / 'run'):
        pass
    assert (tmp_path / 'mine.txt').read_text() == 'kept'


def test_nothing_is_left_of_a_lock(tmp_path):
    with locked(tmp_path / 'a/b'):
        assert (tmp_path / 'a/b/.lock').exists()
    assert not list(tmp_path.iterdir())
    (tmp_path / 'c').mkdir()
    with locked(tmp_path / 'c'):
        (tmp_path / 'c/result').touch()
    assert [path.name for path in (tmp_path / 'c').iterdir()] == ['result']


def _hold_with_a_worker(folder, workers):
    with locked(folder):
        worker = FORK.Process(target=time.sleep, args=(60, ))
        worker.start()
        workers.put(worker.pid)
        time.sleep(60)


def test_a_worker_does_not_hold_what_its_parent_held(tmp_path):
    """Killed with SIGKILL, a run leaves data-loading workers for seconds."""
    workers = FORK.Queue()
    owner = FORK.Process(target=_hold_with_a_worker, args=(tmp_path, workers))
    owner.start()
    worker = workers.get(timeout=60)
    owner.kill()
    owner.join()
    try:
        with locked(tmp_path):
            os.kill(worker, 0)  # it lives
    finally:
        os.kill(worker, signal.SIGKILL)


def test_files_of_dead_writers_go(tmp_path):
    """And those of living ones, of other machines and of others stay."""
    dead = subprocess.Popen(['true'])
    dead.wait()
    host = socket.gethostname()
    names = dict(dead=f'.part-{host}-{dead.pid}-epoch_1.x.pth',
                 own=f'.part-{host}-{os.getpid()}-a.x',
                 other='.part-elsewhere-1-a.x', old='.part-elsewhere-2-a.x', mine='epoch_1.pth')
    for name in names.values():
        (tmp_path / name).touch()
    os.utime(tmp_path / names['old'], (0, 0))
    with locked(tmp_path):
        left = {path.name for path in tmp_path.iterdir()} - {'.lock'}
    assert left == {names['own'], names['other'], names['mine']}
    remove_stale(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == left


def _die_writing(write, path):
    with write(path) as part:
        (part / 'file' if write is atomic_folder else part).write_text('ne')
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize('write, before', [(atomic_write, ['file']), (atomic_folder, [])])
def test_killed_while_it_writes(write, before, tmp_path):
    """The old file stays, and the next run removes what was half written."""
    for name in before:
        (tmp_path / name).write_text('old')
    writer = FORK.Process(target=_die_writing, args=(write, tmp_path / 'file'))
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == len(before) + 1
    with locked(tmp_path):
        pass
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        (name, 'old') for name in before]


def test_two_writers_of_one_file(tmp_path):
    path = Path(tmp_path / 'file.txt')
    with atomic_write(path) as one, atomic_write(path) as two:
        one.write_text('one')
        two.write_text('two')
        assert one != two and one.suffix == '.txt'
    assert path.read_text() == 'one' and len(list(tmp_path.iterdir())) == 1

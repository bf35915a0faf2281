"""Files that are complete or absent, and folders that one run has for itself."""

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmkcr.core import atomic_write, locked, remove_stale

HOLD = """
import sys, time
from mmkcr.core import locked
with locked(sys.argv[1]):
    print('held', flush=True)
    time.sleep(float(sys.argv[2]))
"""


def hold(folder, seconds=60):
    """A process that has the folder."""
    process = subprocess.Popen([sys.executable, '-c', HOLD, str(folder), str(seconds)],
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == 'held\n'
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
        owner.wait()
    with locked(tmp_path / 'run'):  # a killed one leaves the file, which locks nobody out
        pass
    assert not (tmp_path / 'run/.lock').exists()


def test_nothing_is_left_of_a_lock(tmp_path):
    with locked(tmp_path / 'a/b'):
        assert (tmp_path / 'a/b/.lock').exists()
    assert not list(tmp_path.iterdir())
    (tmp_path / 'c').mkdir()
    with locked(tmp_path / 'c'):
        (tmp_path / 'c/result').touch()
    assert [path.name for path in (tmp_path / 'c').iterdir()] == ['result']


def test_a_worker_does_not_hold_what_its_parent_held(tmp_path):
    """Killed with SIGKILL, a run leaves data-loading workers for seconds."""
    context = multiprocessing.get_context('fork')
    worker = context.Process(target=time.sleep, args=(60, ))
    with locked(tmp_path):
        worker.start()
        (tmp_path / '.lock').unlink()  # as if it had been killed: the end below removes nothing
    try:
        with locked(tmp_path):
            assert worker.is_alive()
    finally:
        worker.kill()
        worker.join()


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
    assert remove_stale(tmp_path) == []


def test_killed_while_it_writes(tmp_path):
    """The old file stays, and the next run removes what was half written."""
    (tmp_path / 'file').write_text('old')
    code = ('import os, signal\nfrom mmkcr.core import atomic_write\n'
            f'with atomic_write({str(tmp_path / "file")!r}) as path:\n'
            '    path.write_text("ne")\n    os.kill(os.getpid(), signal.SIGKILL)')
    assert subprocess.run([sys.executable, '-c', code]).returncode == -signal.SIGKILL
    assert (tmp_path / 'file').read_text() == 'old' and len(list(tmp_path.iterdir())) == 2
    with locked(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ['file']


def test_two_writers_of_one_file(tmp_path):
    path = Path(tmp_path / 'file.txt')
    with atomic_write(path) as one, atomic_write(path) as two:
        one.write_text('one')
        two.write_text('two')
        assert one != two and one.suffix == '.txt'
    assert path.read_text() == 'one' and len(list(tmp_path.iterdir())) == 1

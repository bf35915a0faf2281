""".ci/run fails when lint or tests fail, or when no test passed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / '.ci' / 'run'


def run(tmp_path, lint=0, test=0, says=''):
    """Run a copy of the script with a make that does as told."""
    (tmp_path / '.ci').mkdir()
    shutil.copy(RUN, tmp_path / '.ci' / 'run')
    make = tmp_path / 'bin' / 'make'
    make.parent.mkdir()
    make.write_text(f'#!/bin/sh\necho "$@" >> calls\n[ "$1" = lint ] && exit {lint}\n'
                    f'echo "{says}"\nexit {test}\n')
    make.chmod(0o755)
    env = dict(os.environ, PATH=f'{make.parent}:{os.environ["PATH"]}')
    result = subprocess.run([str(tmp_path / '.ci' / 'run')], cwd='/', env=env,
                            capture_output=True, text=True)
    assert (tmp_path / 'calls').read_text().split() == ['lint', 'test']
    return result


@pytest.mark.parametrize('says, lint, test, good', [
    ('=== 3 passed in 1.20s ===', 0, 0, True),
    ('12 passed, 1 skipped, 2 warnings in 61.02s (0:01:01)', 0, 0, True),
    ('=== no tests ran in 0.01s ===', 0, 0, False),
    ('=== 4 skipped in 0.01s ===', 0, 0, False),
    ('', 0, 0, False),
    ('=== 1 failed, 3 passed in 1.20s ===', 0, 2, False),
    ('=== 3 passed in 1.20s ===', 1, 0, False)])
def test_it_fails_unless_something_passed_and_nothing_failed(tmp_path, says, lint, test, good):
    """And ends with the line that says so."""
    result = run(tmp_path, lint, test, says)
    assert (result.returncode == 0) == good
    assert not good or result.stdout.splitlines()[-1] == says


def versions(tmp_path, *args):
    """Run a copy of .ci/versions with a pip and a pytest that note what they are given."""
    root = RUN.parents[1]
    (tmp_path / '.ci').mkdir()
    shutil.copy(root / '.ci/versions', tmp_path / '.ci')
    shutil.copytree(root / 'requirements', tmp_path / 'requirements')
    python = tmp_path / 'python'
    python.write_text('#!/bin/sh\n'
                      'if [ "$2" = venv ]; then\n'
                      '  mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit; fi\n'
                      'case "$*" in *"-c import mmcv.ops"*) exit 0;; esac\n'
                      'echo "$*" >> calls\n'
                      'for word in "$@"; do case $word in *.txt) [ -f "$word" ] && '
                      'grep -E "^(torch|onedl-mmpretrain)==" "$word" >> pins;; '
                      'esac; done\nexit 0\n')
    python.chmod(0o755)
    args = [str(python) if word == 'PYTHON' else word for word in args]
    done = subprocess.run([str(tmp_path / '.ci/versions'), *args], cwd='/', text=True,
                          capture_output=True, env=dict(os.environ, PYTHON=str(python)))
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / 'calls').read_text()
    assert calls.count('-m pytest') == done.stdout.count('== ')
    assert ('tests/test_configs' in calls) == (not {'short', 'surroundings'} & set(args))
    assert 'tests/test_models' in calls
    return (tmp_path / 'pins').read_text().split()


@pytest.mark.parametrize('args, pins', [
    ([], ['torch==2.14.1', 'onedl-mmpretrain==1.3.6', 'torch==2.13.0',
          'onedl-mmpretrain==1.3.5']),
    (['newest'], ['torch==2.14.1', 'onedl-mmpretrain==1.3.6']),
    (['oldest'], ['torch==2.13.0', 'onedl-mmpretrain==1.3.5']),
    (['short', 'oldest'], ['torch==2.13.0', 'onedl-mmpretrain==1.3.5']),
    (['surroundings', 'PYTHON', 'transformers>=5'], []),  # what pip finds for that Python
    (['torch==9.1.0'], ['torch==9.1.0', 'onedl-mmpretrain==1.3.6'])])
def test_rows_of_versions(tmp_path, args, pins):
    """Each row installs the newest versions, but for those that it names."""
    assert set(versions(tmp_path, *args)) == set(pins)

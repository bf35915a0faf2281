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


@pytest.mark.parametrize('says', [
    '=== 3 passed in 1.20s ===', '12 passed, 1 skipped, 2 warnings in 61.02s (0:01:01)'])
def test_success_ends_with_the_closing_line(tmp_path, says):
    result = run(tmp_path, says=says)
    assert result.returncode == 0 and result.stdout.splitlines()[-1] == says


@pytest.mark.parametrize('case', [
    dict(says='=== no tests ran in 0.01s ==='),
    dict(says='=== 4 skipped in 0.01s ==='),
    dict(says=''),
    dict(says='=== 1 failed, 3 passed in 1.20s ===', test=2),
    dict(says='=== 3 passed in 1.20s ===', lint=1)])
def test_failure(tmp_path, case):
    assert run(tmp_path, **case).returncode != 0

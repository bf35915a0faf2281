"""The short form of tests/faults/campaign.py."""

import json
import subprocess
import sys
from pathlib import Path

import folders
import pytest
from campaign import kill_runs
from mutations import run


def test_changed_files(tmp_path):
    """Refused in one sentence or loaded exactly, without code, large memory or long waits."""
    found = run(400, tmp_path)
    assert found['wrong'] == {}
    for sort in ('structure', 'checkpoint'):
        assert found[sort]['refused'] > 50 and sum(found[sort].values()) == 200


@pytest.mark.parametrize('kind', sorted(folders.KINDS))
def test_a_changed_file_of_a_folder(kind, tmp_path):
    """Refused in one sentence, told, or without effect."""
    found = folders.run(8, tmp_path, [kind])
    assert found['wrong'] == {}
    assert all(sum(counts.values()) == 8 and counts.get('refused', 0) + counts.get('told', 0)
               for counts in found['counts'].values())


def test_killed_runs(digits_root, servers, tmp_path):
    """Of the run whose tensors shrink while it trains."""
    found = kill_runs(2, tmp_path, digits_root, ['pruning'], kills=2, servers=servers)
    assert found['lost'] == {} and sum(found['kills'].values()) >= 2


def test_the_script_runs_by_itself(tmp_path):
    """Also where nothing has prepared the hosts before."""
    words = '--kills 0 --files 2 --folders 1 --kinds distilling --out'.split()
    script, out = Path(__file__).with_name('campaign.py'), tmp_path / 'counts.json'
    subprocess.run([sys.executable, script, *words, out], check=True, timeout=600)
    counts = json.loads(out.read_text())
    assert counts['files']['wrong'] == counts['folders']['wrong'] == {}
    assert counts['files']['structure'] and counts['folders']['counts']

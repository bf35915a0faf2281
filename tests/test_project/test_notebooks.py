"""Every notebook runs from its first cell to its last, and says what it claims."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / 'docs/notebooks').glob('*.ipynb'))


def run(path, folder):
    """What the cells print, run in one namespace."""
    printed, scope = io.StringIO(), {}
    with contextlib.redirect_stdout(printed), contextlib.chdir(folder):
        for cell in json.loads(path.read_text())['cells']:
            if cell['cell_type'] == 'code':
                exec(''.join(cell['source']), scope)
    return printed.getvalue()


def test_they_are_found_and_hold_no_outputs():
    assert [path.name for path in NOTEBOOKS] == ['timm_to_onnx.ipynb']
    for path in NOTEBOOKS:  # what a reader's machine printed is not ours to state
        assert not any(cell.get('outputs') or cell.get('execution_count')
                       for cell in json.loads(path.read_text())['cells'])


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path):
    printed = run(path, tmp_path)
    dense, slim = (float(re.search(rf'{name}: ([\d.]+)%', printed)[1])
                   for name in ('dense', 'slim'))
    assert dense > 80 and slim > dense - 15
    share = int(re.search(r'MACs: .*\((\d+)%\)', printed)[1])
    assert 30 < share <= 50
    sizes = [(tmp_path / f'{name}.onnx').stat().st_size for name in ('dense', 'slim')]
    assert sizes[1] < 0.8 * sizes[0]
    assert re.search(r'ratio \d\.\d\d', printed)
    assert {path.name for path in tmp_path.iterdir()} == {
        'dense.onnx', 'slim.onnx', 'slim.pth', 'structure.json'}

"""benchmarks/refit.py: every part is measured, and what it measures is the refit."""

import json

import pytest

TOOL = 'benchmarks/refit'


def test_table_and_file(run_tool, tmp_path):
    printed = run_tool(TOOL, '--widths', 24, 12, '--tokens', 100, '--groups', 4, '--threads', 1,
                       '--clock', 'cpu', '--out', 'r.json')
    result = json.loads((tmp_path / 'r.json').read_text())
    assert [row['width'] for row in result['rows']] == [12, 24]
    assert [row['kept'] for row in result['rows']] == [2, 3]  # of 3 and 6 units
    for row in result['rows']:
        assert min(row[part] for part in ('moments', 'order', 'refit')) > 0
        assert 0 < row['lost'] < 1 and row['memory'] > 2**20
    assert 'order (s)' in printed and 'torch' in result['machine']


@pytest.mark.parametrize('arguments, message', [
    (['--keep', '0'], 'a share to keep within 0 and 1'),
    (['--clock', 'cpu'], '`--threads 1` on the CPU for `--clock cpu`, found threads None on cpu'),
    (['--widths', '9', '--groups', '4', '--tokens', '9'],
     'channels that are units of 4, found 9'),
    (['--widths', '0'], 'widths, tokens and groups of at least 1'),
])
def test_mistakes(refused, arguments, message):
    assert message in refused(TOOL, *arguments, '--out', 'r.json')

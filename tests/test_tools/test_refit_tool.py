"""benchmarks/refit.py: every part is measured, and what it measures is the refit."""

import json

import pytest


def test_table_and_file(load_tool, tmp_path, capsys):
    tool = load_tool('benchmarks/refit')
    out = tmp_path / 'r.json'
    tool.main(['--widths', '24', '9', '--tokens', '100', '--groups', '4', '--threads', '1',
               '--clock', 'cpu', '--out', str(out)])
    result = json.loads(out.read_text())
    assert [row['width'] for row in result['rows']] == [9, 24]
    assert [row['kept'] for row in result['rows']] == [2, 3]  # of 3 and 6 units
    for row in result['rows']:
        assert min(row[part] for part in ('moments', 'forward', 'backward', 'refit')) > 0
        assert 0 < row['lost'] < 1 and row['memory'] > 2**20
    assert 'order, backward' in capsys.readouterr().out and 'torch' in result['machine']


def test_orders_are_compared(load_tool, tmp_path, capsys):
    tool = load_tool('benchmarks/refit')
    out = tmp_path / 'r.json'
    tool.main(['--compare', '32', '--out', str(out)])
    rows = json.loads(out.read_text())['rows']
    assert [row['problem'] for row in rows] == list(tool.PROBLEMS)
    for row in rows:
        assert len(row['ratios']) == len(tool.SHARES)
        assert all(.5 < ratio < 2 for ratio in row['ratios'])
        # the error is what units leave, so more of them leave less
        assert row['errors'] == sorted(row['errors'], reverse=True)
    assert 'low rank' in capsys.readouterr().out


@pytest.mark.parametrize('arguments, message', [
    (['--keep', '0'], 'a share to keep within 0 and 1'),
    (['--clock', 'cpu'], '`--threads 1` on the CPU for `--clock cpu`, found threads None on cpu'),
    (['--widths', '0'], 'widths, tokens and groups of at least 1'),
])
def test_mistakes(load_tool, tmp_path, capsys, arguments, message):
    out = tmp_path / 'r.json'
    with pytest.raises(SystemExit):
        load_tool('benchmarks/refit').main([*arguments, '--out', str(out)])
    assert message in capsys.readouterr().err and not out.exists()

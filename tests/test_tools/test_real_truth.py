"""Rows of the tool that judges the real network by truth."""

import csv
from types import SimpleNamespace

import pytest
import torch
from tool_files import load_tool

tool = load_tool('benchmarks/real_truth')


@pytest.fixture()
def judge():
    dense = {'right': torch.tensor([1., 0, 1, 0])}
    return SimpleNamespace(dense=SimpleNamespace(size=112), dense_scores=lambda: dense)


def test_a_row_says_the_mean_and_the_difference_with_its_interval(judge):
    case = tool.Case('closed-form-60', 'closed form', '60%', '0.860 G')
    row, = tool.rows_of(case, judge, {'right': torch.tensor([1., 0, 0, 0])})
    assert row['after'] == '0.250 (-0.250 ± 0.490)' and row['before'] == '0.500'
    assert row['task'] == '4 pictures of 112 px' and row['macs'] == '0.860 G'
    own, = tool.rows_of(case, judge, judge.dense_scores())
    assert own['after'] == '0.500'


def test_rows_are_appended_once(judge, tmp_path, monkeypatch):
    monkeypatch.setattr('sys.argv', ['real_truth.py', str(tmp_path), '--size', '112'])
    path = tmp_path / 'rows.csv'
    path.write_text(','.join(tool.FIELDS) + '\n')
    case = tool.Case('closed-form-60', 'closed form', '60%', '0.860 G')
    rows = tool.rows_of(case, judge, {'right': torch.tensor([1., 0, 0, 0])})
    for _ in range(2):
        tool.write_rows(path, rows, 0, '9 crops')
    tool.write_rows(path, rows, 1, '9 crops')  # another split
    found = list(csv.DictReader(path.open()))
    assert [row['seed'] for row in found] == ['0', '1']
    assert found[0]['source'] == 'ours' and found[0]['commit'] and found[0]['versions']
    assert found[0]['command'] == \
        f'python tools/benchmarks/real_truth.py {tmp_path.name} --size 112'

"""Results are data: one schema, a source for every row, and pages that say what the files say."""

import re

import numpy as np
import pytest
import yaml
from tool_files import load_tool

tool = load_tool('model_zoo/result_tables')
ROWS = tool.read_results()


def test_every_row_says_where_it_comes_from():
    ours = [row for row in ROWS if row['source'] == 'ours']
    assert len(ours) > 4000 and all(row['command'] and row['commit'] for row in ours)
    reported = [row for row in ROWS if row['source'] != 'ours']
    assert len(reported) > 300 and all(row['source'] and not row['command'] for row in reported)
    assert all(row['study'].startswith('reported/') for row in reported)
    assert all(row['after'] or row['before'] or 'not run' in row['note'] for row in ROWS)


def test_tables_of_the_pages_are_those_of_the_data():
    tables = yaml.safe_load((tool.RESULTS / 'tables.yml').read_text())
    pages = [path for path in tool.pages() if '<!-- results: ' in path.read_text()]
    assert pages
    for path in pages:
        assert tool.render(path.read_text(), ROWS, tables) == path.read_text(), path


def test_a_cell_is_one_row():
    row = dict.fromkeys(tool.FIELDS, '') | dict(study='a', method='m', after='1')
    table = dict(where=dict(study='a'), rows='method', columns='study', value='after', corner='')
    assert '| m | 1 |' in tool.pivot([row, row], table)
    with pytest.raises(ValueError, match='one value for `m` and `a`, found 1 and 2'):
        tool.pivot([row, row | dict(after='2')], table)
    with pytest.raises(ValueError, match='found none'):
        tool.pivot([row], table | dict(where=dict(study='b')))


def test_a_file_has_the_schema(tmp_path):
    (tmp_path / 'a.csv').write_text('study,what\n')
    with pytest.raises(ValueError, match='columns study, network.* in `a.csv`'):
        tool.read_results(tmp_path)


def prose(text):
    """A page without generated tables, code, formulas and targets of links."""
    for left_out in (r'<!-- (results|table)\b.*?<!-- /\1 -->', r'^( *)```.*?^\1```$', r'`[^`\n]*`',
                     r'\$[^$]*\$', r'(?<=\])\([^)]*\)'):
        text = re.sub(left_out, '', text, flags=re.DOTALL | re.MULTILINE)
    return text


def test_numbers_of_the_pages_are_those_of_the_data():
    measured = np.unique([float(number) for row in ROWS for name, value in row.items()
                          if name != 'commit' for number in re.findall(r'\d+(?:\.\d+)?', value)])
    found = 0
    for path in tool.pages():
        for number in re.findall(r'(?<![\w.-])\d+\.\d+(?![\w.])', prose(path.read_text())):
            digits, found = len(number.partition('.')[2]), found + 1
            # as it stands, or a share that the data have in per cent, or the reverse
            distances = [np.abs(measured * scale - float(number)).min() for scale in (1, 100, 0.01)]
            assert min(distances) <= 0.5 * 10**-digits + 1e-9, f'{number} of {path}'
    assert found > 70


def test_paragraphs_have_at_most_three_numbers():
    """Shares and decimals; a table is for more."""
    for path in tool.pages():
        for paragraph in re.split(r'\n\n|\n(?:-|\d+\.) ', prose(path.read_text())):
            if not paragraph.lstrip().startswith('|'):  # nor a table that is written by hand
                found = re.findall(r'(?<![\w.-])(?:\d+\.\d+(?![\w.])|\d+ ?%)', paragraph)
                assert len(found) <= 3, f'{found} in `{path.name}`: {paragraph:.80}'

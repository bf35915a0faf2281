"""What the sizes of the project may grow to, and that the tool counts what is there."""

from collections import Counter
from pathlib import Path

import pytest

from lab.commands import load_tool

ROOT = Path(__file__).parents[2]
tool = load_tool('benchmarks/sizes')


@pytest.fixture(scope='module')
def found():
    return tool.sizes()


def test_a_file_is_one_methods(found):
    files = Counter(file for names in tool.METHODS.values()
                    for file in tool.files_of(ROOT / 'mmkcr', names))
    assert set(files.values()) == {1} and set(found['methods']) == {'kcr', 'dcs', 'ofb', 'dwconv'}


def test_a_family_and_a_kind_are_small(found):
    assert len(found['adapters']) > 30 and max(found['adapters'].values()) <= 120
    assert len(found['kinds']) >= 7 and max(found['kinds'].values()) <= 135


def test_configs_do_not_multiply(found):
    """A new method base, model or data set is a file; a stage, a number or a path is an option."""
    files = len(list((ROOT / 'configs').rglob('*.py')))
    assert found['configs']['total'] == files
    assert sum(size for name, size in found['configs'].items() if name != 'total') == files
    assert found['configs']['_base_/models'] < 40


def test_what_came_later_is_counted_once(found):
    files = Counter(file for patterns in tool.LATER.values()
                    for file in tool.files_of(ROOT / 'mmkcr', patterns))
    assert set(files.values()) == {1} and set(found['later']) == set(tool.LATER)
    assert sum(found['later'].values()) == sum(map(tool.lines, files))
    with pytest.raises(FileNotFoundError, match='expected files of `mmkcr/nothing'):
        tool.files_of(ROOT / 'mmkcr', ['nothing/*.py'])


def test_table(found):
    table = {what: cells for what, *cells in tool.rows(found)}
    assert table['lines of mmkcr'] == [str(found['package']['total']),
                                       str(found['code']['package'])]


def test_code_is_what_is_left_without_docstrings_comments_and_empty_lines(tmp_path):
    file = tmp_path / 'some.py'
    file.write_text('''"""About.

More.
"""

import os  # code


# none
class A:
    """None."""

    text = """
    code
    """

    def f(self):
        """None."""
        return (os,
                1)
''')
    assert tool.code_lines(file) == 8

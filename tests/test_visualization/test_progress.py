"""Bars: on a terminal, and nowhere else."""

import io
import sys

import pytest

from mmkcr.visualization import shown


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize('refresh', [True, False])
def test_a_bar_with_the_count_on_a_terminal(monkeypatch, refresh):
    monkeypatch.setattr(sys, 'stderr', Terminal())
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', '80')
    assert list(shown(iter('abc'), 'Letters', 3, refresh)) == ['a', 'b', 'c']
    assert 'Letters' in sys.stderr.getvalue() and '3/3' in sys.stderr.getvalue()


def test_nothing_in_a_log(capsys):
    assert list(shown('abc', 'Letters')) == ['a', 'b', 'c']
    assert capsys.readouterr() == ('', '')


def test_an_error_passes(monkeypatch):
    monkeypatch.setattr(sys, 'stderr', Terminal())
    with pytest.raises(ZeroDivisionError):
        for number in shown([1, 0], 'Quotients'):
            1 / number

"""Bars on a terminal, lines from time to time in a log."""

import io
import sys

import pytest

from mmkcr import visualization
from mmkcr.visualization import show_progress


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize('refresh', [True, False])
def test_a_bar_with_the_count_on_a_terminal(monkeypatch, refresh):
    monkeypatch.setattr(sys, 'stderr', Terminal())
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', '80')
    assert list(show_progress(iter('abc'), 'Letters', 3, refresh)) == ['a', 'b', 'c']
    assert 'Letters' in sys.stderr.getvalue() and '3/3' in sys.stderr.getvalue()


@pytest.mark.parametrize('rank, period', [('0', visualization.PERIOD), ('1', 0)])
def test_nothing_of_a_short_loop_in_a_log_nor_of_other_processes(rank, period, monkeypatch, capsys):
    monkeypatch.setenv('RANK', rank)
    monkeypatch.setattr(visualization, 'PERIOD', period)
    assert list(show_progress('abc', 'Letters')) == ['a', 'b', 'c']
    assert capsys.readouterr() == ('', '')


@pytest.mark.parametrize(('letters', 'of', 'left'), [
    ('abcd', ' of 4', (', 40 s left', ', 0 s left')), (iter('abcd'), '', ('', ''))])
def test_a_line_every_half_minute_in_a_log(monkeypatch, capsys, letters, of, left):
    clock = iter([0., 20., 40., 60., 80.])  # the start, and after every item
    monkeypatch.setattr(visualization.time, 'monotonic', lambda: next(clock))
    assert list(show_progress(letters, 'Letters')) == ['a', 'b', 'c', 'd']
    assert capsys.readouterr() == ('', f'Letters: 2{of} after 40 s{left[0]}\n'
                                   f'Letters: 4{of} after 80 s{left[1]}\n')


def test_a_loop_inside_another_shows_nothing(monkeypatch, capsys):
    monkeypatch.setattr(visualization, 'PERIOD', 0)
    for _ in show_progress('a', 'Outer'):
        assert list(show_progress('bc', 'Inner')) == ['b', 'c']
    assert list(show_progress('d', 'After')) == ['d']
    names = [line.partition(':')[0] for line in capsys.readouterr().err.splitlines()]
    assert names == ['Outer', 'After']


def test_items_may_count_more_than_one(monkeypatch, capsys):
    monkeypatch.setattr(visualization, 'PERIOD', 0)
    assert list(show_progress(['ab', 'c'], 'Letters', 3, size=len)) == ['ab', 'c']
    assert [line.partition(' after')[0] for line in capsys.readouterr().err.splitlines()] == [
        'Letters: 2 of 3', 'Letters: 3 of 3']


def test_an_error_passes(monkeypatch):
    monkeypatch.setattr(sys, 'stderr', Terminal())
    with pytest.raises(ZeroDivisionError):
        for number in show_progress([1, 0], 'Quotients'):
            1 / number

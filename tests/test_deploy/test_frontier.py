"""The frontier and its recommendation, against every other choice by brute force."""

import csv
import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.deploy.file_bench import AGREEMENTS, Quality
from mmkcr.deploy.frontier import (
    NAMES,
    Lever,
    Row,
    choose,
    combine,
    drop_beaten,
    find_better_row,
    recommend,
)
from mmkcr.deploy.frontier_files import THEMES, FrontierResult

KEEPS = st.sampled_from([0.5, 0.8, 0.95, 1.])


@st.composite
def tables(draw):
    """Rows of two runtimes and two numbers of threads; some failed, some have equal numbers."""
    steps, rows = st.integers(1, 6), []
    for runtime in ('onnxruntime', 'openvino'):
        for threads in (1, 2):
            ms = float(draw(steps))
            rows.append(Row('dense', runtime, threads, False, 1., (1., 1.), ms, 9, 1.))
            for number in range(draw(st.integers(0, 6))):
                row = Row(f'lever {number}', runtime, threads, draw(st.booleans()))
                if draw(st.booleans()) or number % 2:
                    row = dataclasses.replace(
                        row, ratio=draw(steps) / 4, quartiles=(0.1, 0.2), ms=float(draw(steps)),
                        agreement=draw(steps) / 6)
                rows.append(row)
    return rows


def is_beaten(row, rows):
    return any(
        other.ratio is not None and other.runtime == row.runtime and other.threads == row.threads
        and ((other.ratio < row.ratio and other.quality >= row.quality)
             or (other.ratio <= row.ratio and other.quality > row.quality)) for other in rows)


@settings(deadline=None, max_examples=60)
@given(tables())
def test_what_no_other_row_beats(rows):
    measured = [row for row in rows if row.ratio is not None]
    expected = [row for row in measured if not is_beaten(row, rows)]
    best = drop_beaten(rows)
    assert set(best) == set(expected) and [row.ratio for row in best] == sorted(
        row.ratio for row in best)
    for row in measured:
        other = find_better_row(row, rows)
        assert (other is not None) == is_beaten(row, rows)
        if other is not None:
            assert is_beaten(row, [other])


@settings(deadline=None, max_examples=60)
@given(tables(), KEEPS, st.booleans())
def test_the_choice_is_the_fastest_that_keeps_enough(rows, keep, int8):
    enough = [row for row in rows if row.ratio is not None and row.quality >= keep
              and (int8 or not row.int8)]
    best = choose(rows, keep, int8)
    assert best in enough
    assert (best.ms, -best.quality) == min((row.ms, -row.quality) for row in enough)


@settings(deadline=None, max_examples=60)
@given(tables(), KEEPS)
def test_the_recommendation_names_the_choice_for_each_number_of_threads(rows, keep):
    lines = recommend(rows, keep, AGREEMENTS['top1']).splitlines()
    assert len(lines) == 2
    for threads, line in zip((1, 2), lines):
        there = [row for row in rows if row.threads == threads]
        best, plain = choose(there, keep), choose(there, keep, int8=False)
        assert line.startswith(f'On {threads} thread')
        assert f'keep {keep:.0%} of the quality: {best.levers} in' in line
        assert f'{best.ms:.4g} ms an image, {best.quality:.1%} of the images' in line
        assert ('Without int8' in line) == best.int8
        if best.int8:
            assert f'Without int8: {plain.levers} in' in line


def test_a_metric_decides_where_there_is_one():
    dense = Row('dense', 'openvino', 1, False, 1., (1., 1.), 9., 9, 1., 60., 'mIoU')
    cut = dataclasses.replace(dense, levers='60% of the MACs', ratio=0.5, ms=5., agreement=0.5,
                              metric=59.)
    assert choose([dense, cut], 0.95) == cut and choose([dense, cut], 0.99) == dense


@pytest.mark.parametrize('metric', [0., -2.])
def test_no_share_is_kept_of_a_metric_that_is_not_above_zero(metric):
    """As of an untrained network, or of a loss: any network would keep enough, or none."""
    dense = Row('dense', 'openvino', 1, False, 1., (1., 1.), 9., 9, 1., metric, 'mIoU')
    cut = dataclasses.replace(dense, levers='60% of the MACs', ratio=0.5, ms=5., agreement=0.1)
    line = recommend([dense, cut], 0.95, Quality('mIoU', 1, 'mIoU {:.4g}', ''))
    assert line == ('On 1 thread, to keep 95% of the quality: nothing to recommend, as the dense '
                    f'network has mIoU {metric:.4g}.')


def test_pairs_are_of_two_kinds():
    levers = [Lever('int8', 'int8'), Lever('half', 'half'), Lever('small', 'input'),
              Lever('smaller', 'input'), Lever('60%', 'cut'), Lever('40%', 'cut')]
    names = [tuple(lever.name for lever in combined) for combined in combine(levers)]
    assert names == [
        (), ('int8', ), ('half', ), ('small', ), ('smaller', ), ('60%', ), ('40%', ),
        ('int8', 'half'), ('int8', 'small'), ('int8', 'smaller'), ('int8', '60%'), ('int8', '40%'),
        ('half', 'small'), ('half', 'smaller'), ('half', '60%'), ('half', '40%'),
        ('small', '60%'), ('small', '40%'), ('smaller', '60%'), ('smaller', '40%')]


def test_files(tmp_path):
    rows = [Row('dense', 'openvino', 2, False, 1., (1., 1.), 9., 2 * 10**6, 1., note=''),
            Row('int8', 'openvino', 2, True, 0.5, (0.4, 0.6), 4.5, 10**6, 0.9, file='a.onnx'),
            Row('input 8 x 8', 'openvino', 2, False, 0.6, (0.6, 0.6), 5., 10**6, 0.8),
            Row('half precision', 'openvino', 2, note='failed: because')]
    result = FrontierResult(rows, AGREEMENTS['pixels'], 0.95, ['About.'], tmp_path)
    result.write()
    with (tmp_path / 'frontier.csv').open(newline='') as file:
        lines = list(csv.DictReader(file))
    assert [line['network'] for line in lines] == [row.levers for row in rows]
    assert lines[1]['time (dense = 1)'] == '0.500' and lines[1]['file (MB)'] == '1'
    assert lines[1]['same class as dense (% of pixels)'] == '90'
    assert lines[2]['beaten by (no slower, no worse)'] == 'int8' and not lines[3]['one image (ms)']
    page = (tmp_path / 'frontier.md').read_text()
    assert result.recommendation in page and 'About.' in page and 'frontier.png' in page
    assert result.recommendation in str(result) and 'failed: because' in str(result)
    for name in THEMES:
        assert (tmp_path / name).read_bytes().startswith(b'\x89PNG')
    # numbers have a unit in their heading
    for heading in (name for name, text in lines[1].items() if re.fullmatch(r'[\d.]+', text)):
        assert heading == 'CPU threads' or re.search(r'\(.+\)', heading), heading


def test_every_line_has_all_columns(tmp_path):
    """A failed row, too, where a metric decides: its note stands under its heading."""
    rows = [Row('dense', 'openvino', 2, False, 1., (1., 1.), 9., 10**6, 1., 60., 'mIoU'),
            Row('half precision', 'openvino', 2, note='failed: because')]
    result = FrontierResult(rows, AGREEMENTS['pixels'], 0.95, ['About.'], tmp_path)
    dense, failed = result.table()
    assert list(failed) == list(dense) and dense['mIoU'] == '60'
    assert failed['note'] == 'failed: because' and not failed['mIoU']
    result.write()
    heads, *lines = (line.split(' | ') for line in (tmp_path / 'frontier.md').read_text()
                     .splitlines() if line.startswith('|'))
    assert {len(line) for line in lines} == {len(heads)}


def test_pictures_name_what_no_other_beats(tmp_path, monkeypatch):
    """Beside the panel, in the order of the numbers; nothing is outside of the picture."""
    from matplotlib.figure import Figure
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, 'savefig', lambda figure, *args, **options: (
        figures.append(figure), save(figure, *args, **options)))
    # long names, of networks that are nearly alike
    rows = [Row('dense', runtime, 1, False, 1., (1., 1.), 9., 9, 1.) for runtime in NAMES]
    rows += [Row(f'input 168 x 168 with {share}% of the MACs', 'openvino', 1, False,
                 0.3 + share / 1000, (1., 1.), 9., 9, 0.98 + share / 10000) for share in range(14)]
    FrontierResult(rows, AGREEMENTS['variance'], 0.95, ['About.'], tmp_path).write()
    assert len(figures) == len(THEMES)
    for figure in figures:
        for axis, runtime in zip(figure.axes, NAMES):
            best = drop_beaten([row for row in rows if row.runtime == runtime])
            named = [text.get_text() for text in axis.get_legend().get_texts()]
            assert named == [f'{number}  {row.levers}' for number, row in enumerate(best, 1)]
            assert [text.get_text() for text in axis.texts] == [
                str(number + 1) for number in range(len(best))]
        inches, whole = figure.get_tightbbox(), figure.get_size_inches()
        assert inches.x0 >= 0 and inches.y0 >= 0 and inches.x1 <= whole[0] and inches.y1 <= whole[1]


@pytest.mark.parametrize('name', AGREEMENTS)
def test_sentences_take_a_quality(name):
    assert re.search(r'0\.50|50\.0%', AGREEMENTS[name].sentence.format(0.5))

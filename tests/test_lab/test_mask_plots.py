"""Plots: what is drawn, and that a file is whole or absent."""

import numpy as np
import pytest

from lab import figures
from lab.curve_plots import plot_curve, plot_gate_histograms
from lab.mask_plots import (
    as_grid,
    kept_shares,
    plot_channel_masks,
    plot_kept_shares,
    plot_mask_evolution,
    site_values,
)
from mmkcr.core import Structure
from mmkcr.visualization import format_table

STRUCTURE = Structure.load(dict(
    format_version=1, backbone=dict(type='mmkcr.KCRSwinTransformer'),
    sites={'stages.0': dict(total=4, kept=[0, 3]), 'stages.1': dict(total=8, kept=[1])}))
SCORES = {'stages.0': [1., -2., 0., 0.5], 'stages.1': list(np.linspace(-1, 1, 8))}


def test_values_of_a_structure_and_of_scores():
    values = site_values(STRUCTURE)
    assert values['stages.0'].tolist() == [1, 0, 0, 1]
    grid = as_grid(values)
    assert grid.shape == (2, 8) and np.isnan(grid[0, 4:]).all() and np.nansum(grid) == 3
    assert kept_shares(STRUCTURE) == {'stages.0': 0.5, 'stages.1': 0.125}
    # alpha = 0 is not kept, as the hard gate has it
    assert kept_shares(SCORES) == {'stages.0': 0.5, 'stages.1': 0.5}


def test_every_plot_writes_one_file(tmp_path):
    plots = {
        'masks.png': lambda p: plot_channel_masks(STRUCTURE, p, 'title'),
        'scores.pdf': lambda p: plot_channel_masks(SCORES, p),
        'shares.svg': lambda p: plot_kept_shares(dict(one=STRUCTURE, two=SCORES), p),
        'evolution.jpg': lambda p: plot_mask_evolution([('1', SCORES), ('2', STRUCTURE)], p),
        'histogram.png': lambda p: plot_gate_histograms(SCORES, p, temperature=0.5),
        'curve.svg': lambda p: plot_curve(dict(a=[3., 2., 1.], b=[1.]), p, ylabel='KC', log=True)}
    for name, plot in plots.items():
        plot(tmp_path / 'deep' / name)
    assert {path.name for path in (tmp_path / 'deep').iterdir()} == {*plots}
    assert all(path.stat().st_size > 1000 for path in (tmp_path / 'deep').iterdir())


def test_histogram_counts_shares(tmp_path, monkeypatch):
    curves = []
    monkeypatch.setattr(figures.Figure, 'savefig',
                        lambda figure, path, **_: curves.extend(figure.axes[0].patches))
    plot_gate_histograms(dict(a=[-9., -9., 0., 9.]), tmp_path / 'h.png', temperature=0.5, bins=3)
    np.testing.assert_allclose(curves[0].get_data().values, [0.5, 0.25, 0.25])


@pytest.mark.parametrize('plot, message', [
    (lambda p: plot_channel_masks({}, p), 'at least one site'),
    (lambda p: plot_kept_shares({}, p), 'at least one selection'),
    (lambda p: plot_mask_evolution([('a', SCORES), ('b', {'other': [1.]})], p),
     'other sites in `b` than in `a`'),
    (lambda p: plot_gate_histograms({}, p), 'gate scores to plot'),
    (lambda p: plot_curve(dict(a=[]), p), 'curves to plot'),
    (lambda p: plot_curve(dict(a=[1., 2.]), p, x=dict(a=[1])), '2 positions for the curve `a`'),
    (lambda p: plot_curve(dict(a=[1.]), p.with_suffix('.exe')), 'a figure file'),
])
def test_refusals_write_nothing(tmp_path, plot, message):
    with pytest.raises(ValueError, match=message):
        plot(tmp_path / 'new' / 'p.png')
    assert not list(tmp_path.iterdir())


def test_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / 'c.png'
    path.write_text('old')

    def fail(figure, target, **_):
        target.write_text('half')
        raise KeyboardInterrupt

    monkeypatch.setattr(figures.Figure, 'savefig', fail)
    with pytest.raises(KeyboardInterrupt):
        plot_curve(dict(a=[1.]), path)
    assert path.read_text() == 'old' and list(tmp_path.iterdir()) == [path]


def test_tables():
    text = format_table(('name', 'value'), [('[bold]', 1), ('b', 22)], 'title')
    assert text.splitlines()[0] == 'title' and '[bold]' in text  # no markup is read into cells
    rows = [[cell.strip() for cell in line.split('│')[1:3]] for line in text.splitlines()
            if '│' in line]
    assert rows == [['[bold]', '1'], ['b', '22']]
    with pytest.raises(ValueError, match='expected 2 cells in a row of a table, found 1'):
        format_table(('a', 'b'), [(1, )])

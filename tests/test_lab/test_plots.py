"""Plots of the laboratory: what is drawn, and that a file is whole or absent; tables; logs."""

import json

import matplotlib
import numpy as np
import pytest
from tool_files import load_tool

from lab import figures
from lab.attention_plots import as_map, guess_grid, plot_affinity, plot_entropy, plot_maps
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
from tools.analysis_tools.bimask_search import head_widths, plot_mask_descent, plot_widths

sensitivity = load_tool('analysis_tools/sensitivity')
STRUCTURE = Structure.load(dict(
    format_version=1, backbone=dict(type='mmkcr.KCRSwinTransformer'),
    sites={'stages.0': dict(total=4, kept=[0, 3]), 'stages.1': dict(total=5, kept=[1])}))
SCORES = {'stages.0': [1., -2., 0., 0.5], 'stages.1': list(np.linspace(-1, 1, 5))}
HEADS = 'layers.0.attn.head_channels'
NARROW = Structure.load(dict(
    format_version=1, backbone=dict(type='mmkcr.OFBVisionTransformer'), sites={
        'patch_embed.embedding': dict(total=12, kept=8),
        HEADS: dict(total=12, kept=[0, 3, 8, 9]),
        'layers.0.ffn.mlp_hidden': dict(total=24, kept=6)}))
GROUPS = {name: 3 if name == HEADS else 1 for name in NARROW.sites}
LOSSES = {'layers.0.attn.heads': [1., 0.5, 0.], 'layers.0.ffn.mlp_hidden': [9., 4., 1., 0.],
          'layers.1.ffn.mlp_hidden': [8., 3., 2., 0.]}
STATISTICS = dict(histogram=[[0.2, 0.8], [1., 0.]], entropy=[1.2, 0.4], limit=1.6)


@pytest.fixture
def drawn(monkeypatch):
    """Axes of the figures that were saved."""
    axes = []
    original = figures.Figure.savefig
    monkeypatch.setattr(figures.Figure, 'savefig', lambda figure, *args, **kwargs: (
        axes.extend(figure.axes), original(figure, *args, **kwargs)))
    return axes


# ---- files --------------------------------------------------------------------------------------


def test_every_plot_writes_one_file(tmp_path):
    plots = {
        'masks.png': lambda p: plot_channel_masks(STRUCTURE, p, 'title'),
        'scores.pdf': lambda p: plot_channel_masks(SCORES, p),
        'shares.svg': lambda p: plot_kept_shares(dict(one=STRUCTURE, two=SCORES), p),
        'evolution.jpg': lambda p: plot_mask_evolution([('1', SCORES), ('2', STRUCTURE)], p),
        'entropy.png': lambda p: plot_entropy(dict(dense=STATISTICS, dcs=STATISTICS), p),
        'overlay.svg': lambda p: plot_maps([np.zeros((8, 8, 3))], dict(a=[np.eye(4)]), p,
                                           overlay=True),
        'widths.png': lambda p: plot_widths(NARROW, GROUPS, p),
        'descent.svg': lambda p: plot_mask_descent(
            {'a': [('1', [0.2, 0.9]), ('2', [1., 0.])], 'b': [('1', [0.5])]}, p)}
    before = dict(matplotlib.rcParams)
    for name, plot in plots.items():
        plot(tmp_path / 'deep' / name)
    assert {path.name for path in (tmp_path / 'deep').iterdir()} == {*plots}
    assert all(path.stat().st_size > 1000 for path in (tmp_path / 'deep').iterdir())
    assert dict(matplotlib.rcParams) == before  # settings do not leak


@pytest.mark.parametrize('plot, message', [
    (lambda p: plot_channel_masks({}, p), 'at least one site'),
    (lambda p: plot_kept_shares({}, p), 'at least one selection'),
    (lambda p: plot_mask_evolution([('a', SCORES), ('b', {'other': [1.]})], p),
     'other sites in `b` than in `a`'),
    (lambda p: plot_kept_shares(dict(one=STRUCTURE), p.with_suffix('.exe')), 'a figure file'),
    (lambda p: plot_entropy(dict(a=STATISTICS, b=dict(STATISTICS, histogram=[[1., 0.]])), p),
     "one number of heads, found {'a': 2, 'b': 1}"),
    (lambda p: plot_mask_descent({}, p), 'masks to plot, found none'),
    (lambda p: sensitivity.plot_sensitivity({}, p), 'at least one site'),
    (lambda p: sensitivity.plot_sensitivity(LOSSES, p, {'layers.0.attn.heads': 1}),
     'in one of the two only')])
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
        plot_kept_shares(dict(one=STRUCTURE), path)
    assert path.read_text() == 'old' and list(tmp_path.iterdir()) == [path]


# ---- masks and widths ---------------------------------------------------------------------------


def test_values_of_a_structure_and_of_scores():
    values = site_values(STRUCTURE)
    assert values['stages.0'].tolist() == [1, 0, 0, 1]
    grid = as_grid(values)
    assert grid.shape == (2, 5) and np.isnan(grid[0, 4:]).all() and np.nansum(grid) == 3
    assert kept_shares(STRUCTURE) == {'stages.0': 0.5, 'stages.1': 0.2}
    # alpha = 0 is not kept, as the hard gate has it
    assert kept_shares(SCORES) == {'stages.0': 0.5, 'stages.1': 0.4}
    assert head_widths(NARROW, GROUPS) == {HEADS: [2, 0, 2]}


# ---- attention ----------------------------------------------------------------------------------


@pytest.mark.parametrize('positions, ratio, grid', [
    (16, 1., (4, 4)), (17, 1., (4, 4)), (18, 1., (4, 4)), (8, 2., (4, 2)), (1, 1., (1, 1))])
def test_grids(positions, ratio, grid):
    assert guess_grid(positions, ratio) == grid


def test_extra_tokens_are_dropped_and_a_number_without_a_grid_is_refused():
    with pytest.raises(ValueError, match='positions on a grid of ratio 1, found `7`'):
        guess_grid(7)
    assert as_map(np.arange(5.), (2, 2)).tolist() == [[1., 2.], [3., 4.]]


def test_affinity_has_one_scale_an_image(tmp_path, drawn):
    """A spiked matrix beside a flat one."""
    spiked, flat = np.eye(8), np.full((8, 8), 1 / 8)
    plot_affinity([np.zeros((8, 8, 3))], dict(dense=[flat], dcs=[spiked]),
                  dict(dense=[np.log(8)], dcs=[0.]), tmp_path / 'affinity.png')
    assert [axis.images[0].get_clim() for axis in drawn[1:]] == [(0, 1)] * 2


# ---- sensitivity --------------------------------------------------------------------------------


def test_sensitivity_over_the_share_that_is_removed(tmp_path, drawn):
    kept = {'layers.0.attn.heads': 2, 'layers.0.ffn.mlp_hidden': 1, 'layers.1.ffn.mlp_hidden': 2}
    sensitivity.plot_sensitivity(LOSSES, tmp_path / 's.png', kept)
    heads, hidden, _ = drawn
    first, dot, second, other = hidden.lines
    np.testing.assert_allclose(first.get_xdata(), [0, 100 / 3, 200 / 3])  # nothing is lost at 100
    np.testing.assert_allclose(first.get_ydata(), [9, 4, 1])
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (pytest.approx(100 / 3), 4)
    assert other.get_ydata()[0] == 2
    assert len(heads.lines) == 1  # all are kept: no dot


def test_command_reads_what_compress_wrote(tmp_path, capsys):
    sites = {name: dict(total=len(values) - 1, kept=[0]) for name, values in LOSSES.items()}
    Structure.load(dict(format_version=1, backbone=dict(type='x'), sites=sites, macs=dict(
        dense=10, subnet=5, input_shape=[3, 8, 8]))).save(tmp_path / 'structure.json')
    (tmp_path / 'sensitivity.json').write_text(json.dumps(
        {name: dict(order=[], losses=values) for name, values in LOSSES.items()}))
    sensitivity.main([str(tmp_path)])
    assert (tmp_path / 'sensitivity.png').is_file()
    (tmp_path / 'sensitivity.json').unlink()
    with pytest.raises(SystemExit):
        sensitivity.main([str(tmp_path)])
    assert 'expected `sensitivity.json`' in capsys.readouterr().err


# ---- tables -------------------------------------------------------------------------------------


def test_tables():
    text = format_table(('name', 'value'), [('[bold]', 1), ('b', 22)], 'title')
    assert text.splitlines()[0] == 'title' and '[bold]' in text  # no markup is read into cells
    rows = [[cell.strip() for cell in line.split('│')[1:3]] for line in text.splitlines()
            if '│' in line]
    assert rows == [['[bold]', '1'], ['b', '22']]

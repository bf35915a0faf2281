"""Widths by head, masks in descending order, and how a search got faster."""

import json

import pytest

from lab.bimask_plots import head_widths, plot_mask_descent, plot_widths
from lab.search_speed import plot_search_speed, read_scalars, search_phases
from mmkcr.core import Structure

STRUCTURE = Structure.load(dict(
    format_version=1, backbone=dict(type='mmkcr.OFBVisionTransformer'), sites={
        'patch_embed.embedding': dict(total=12, kept=8),
        'layers.0.attn.head_channels': dict(total=12, kept=[0, 3, 8, 9]),
        'layers.0.ffn.mlp_hidden': dict(total=24, kept=6)}))
GROUPS = {name: 3 if name.endswith('head_channels') else 1 for name in STRUCTURE.sites}


def test_head_widths():
    assert head_widths(STRUCTURE, GROUPS) == {'layers.0.attn.head_channels': [2, 0, 2]}


def test_figures_are_written(tmp_path):
    plot_widths(STRUCTURE, GROUPS, tmp_path / 'widths.png')
    plot_mask_descent({'a': [('1', [0.2, 0.9]), ('2', [1., 0.])], 'b': [('1', [0.5])]},
                      tmp_path / 'masks.svg')
    for name in ('widths.png', 'masks.svg'):
        assert (tmp_path / name).stat().st_size > 1000
    with pytest.raises(ValueError, match='masks to plot, found none'):
        plot_mask_descent({}, tmp_path / 'none.png')


def lines():
    """Ten logged steps of 4 G in 2 s, then ten of 1 G in 0.8 s, and a validation between."""
    first = [dict(step=10 * i, macs_present=4., time=2.) for i in range(10)]
    last = [dict(step=100 + 10 * i, macs_present=1., time=0.8) for i in range(10)]
    return [*first, {'accuracy/top1': 90., 'step': 1}, *last]


def test_phases(tmp_path):
    path = tmp_path / 'scalars.json'
    path.write_text('\n'.join(map(json.dumps, lines())))
    found = read_scalars(path)
    first, last = search_phases(found)
    assert (first.first, first.last, first.speed, first.ideal) == (0, 90, 1., 1.)
    assert (last.macs, last.seconds, last.speed, last.ideal) == (1., 0.8, 2.5, 4.)
    plot_search_speed(found, tmp_path / 'speed.png')
    assert (tmp_path / 'speed.png').stat().st_size > 1000


def test_other_logs_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match='the log of a search'):
        read_scalars(tmp_path / 'none.json')
    path = tmp_path / 'scalars.json'
    path.write_text('{"loss": 1}\n')
    with pytest.raises(ValueError, match='found 1 lines without'):
        read_scalars(path)

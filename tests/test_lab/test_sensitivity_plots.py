"""One palette, curves on one scale, three colours of channels."""

import json

import numpy as np
import pytest
from matplotlib.colors import to_hex

from lab import figures, palette
from lab.mask_plots import plot_channel_masks
from lab.sensitivity_plots import plot_metric_over_time, plot_sensitivity
from mmkcr.cli.console import load_tool
from mmkcr.core import Structure

LOSSES = {'layers.0.attn.heads': [1., 0.5, 0.], 'layers.0.ffn.mlp_hidden': [9., 4., 1., 0.],
          'layers.1.ffn.mlp_hidden': [8., 3., 2., 0.]}


@pytest.fixture
def drawn(monkeypatch):
    """Axes of the figures that were saved."""
    axes = []
    original = figures.Figure.savefig
    monkeypatch.setattr(figures.Figure, 'savefig', lambda figure, *args, **kwargs: (
        axes.extend(figure.axes), original(figure, *args, **kwargs)))
    return axes


def test_a_panel_a_kind_and_a_colour_a_depth(tmp_path, drawn):
    kept = {'layers.0.attn.heads': 2, 'layers.0.ffn.mlp_hidden': 1, 'layers.1.ffn.mlp_hidden': 2}
    plot_sensitivity(LOSSES, tmp_path / 's.png', kept)
    heads, hidden, scale = drawn
    assert [axis.get_title() for axis in (heads, hidden)] == ['heads', 'mlp_hidden']
    assert heads.get_ylim() == hidden.get_ylim() and scale.get_ylabel() == 'depth of the layer'
    first, dot, second, other = hidden.lines
    np.testing.assert_allclose(first.get_xdata(), [0, 100 / 3, 200 / 3])  # nothing is lost at 100
    np.testing.assert_allclose(first.get_ydata(), [9, 4, 1])
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (pytest.approx(100 / 3), 4)
    assert other.get_ydata()[0] == 2
    assert heads.lines[0].get_color() == first.get_color() != second.get_color()
    assert len(heads.lines) == 1  # all are kept: no dot


def test_dense_is_grey_and_slim_is_teal(tmp_path, drawn):
    plot_metric_over_time({'a': (2., 98.)}, {'a': [(1., 90.), (1.5, 97.)]}, tmp_path / 't.png',
                          'top-1', 'ONNX Runtime', ['50%', '70%'], step=0.5)
    colours = [to_hex(line.get_color()) for line in drawn[0].lines]
    assert palette.SLIM in colours and palette.DENSE in colours


def test_kept_cut_and_absent_have_a_colour_each(tmp_path, drawn):
    structure = Structure.load(dict(
        format_version=1, backbone=dict(type='mmkcr.KCRSwinTransformer'),
        sites={'a': dict(total=2, kept=[0]), 'b': dict(total=3, kept=[1])}))
    plot_channel_masks(structure, tmp_path / 'm.png')
    image = drawn[0].images[0]
    colours = [[to_hex(colour) for colour in row] for row in image.cmap(image.norm(
        image.get_array()))]
    assert colours == [[palette.KEPT, palette.CUT, palette.ABSENT],
                       [palette.CUT, palette.KEPT, palette.CUT]]
    assert [label.get_text() for label in drawn[0].get_yticklabels()] == ['a', 'b']


def test_settings_do_not_leak(tmp_path):
    import matplotlib
    before = dict(matplotlib.rcParams)
    plot_sensitivity(LOSSES, tmp_path / 's.png')
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize('plot, message', [
    (lambda p: plot_sensitivity({}, p), 'at least one site'),
    (lambda p: plot_sensitivity(LOSSES, p, {'layers.0.attn.heads': 1}), 'in one of the two only'),
    (lambda p: plot_metric_over_time({}, {}, p), 'the same models')])
def test_refusals(tmp_path, plot, message):
    with pytest.raises(ValueError, match=message):
        plot(tmp_path / 'p.png')
    assert not list(tmp_path.iterdir())


def test_command_reads_what_compress_wrote(tmp_path, capsys):
    sites = {name: dict(total=len(values) - 1, kept=[0]) for name, values in LOSSES.items()}
    Structure.load(dict(format_version=1, backbone=dict(type='x'), sites=sites, macs=dict(
        dense=10, subnet=5, input_shape=[3, 8, 8]))).save(tmp_path / 'structure.json')
    (tmp_path / 'sensitivity.json').write_text(json.dumps(
        {name: dict(order=[], losses=values) for name, values in LOSSES.items()}))
    load_tool('analysis_tools/sensitivity').main([str(tmp_path)])
    assert (tmp_path / 'sensitivity.png').is_file()
    (tmp_path / 'sensitivity.json').unlink()
    with pytest.raises(SystemExit):
        load_tool('analysis_tools/sensitivity').main([str(tmp_path)])
    assert 'expected `sensitivity.json`' in capsys.readouterr().err

"""Pictures of attention: what is drawn, and that a file is whole or absent."""

import matplotlib.image
import numpy as np
import pytest

from lab.attention_plots import (
    as_map,
    guess_grid,
    plot_affinity,
    plot_entropy,
    plot_maps,
)

STATISTICS = dict(histogram=[[0.2, 0.8], [1., 0.]], entropy=[1.2, 0.4], limit=1.6)


@pytest.mark.parametrize('positions, ratio, grid', [(16, 1., (4, 4)), (17, 1., (4, 4)),
                                                    (18, 1., (4, 4)), (8, 2., (4, 2)),
                                                    (1, 1., (1, 1))])
def test_grids(positions, ratio, grid):
    assert guess_grid(positions, ratio) == grid


def test_a_number_without_a_grid_is_refused():
    with pytest.raises(ValueError, match='positions on a grid of ratio 1, found `7`'):
        guess_grid(7)


def test_extra_tokens_are_dropped():
    assert as_map(np.arange(5.), (2, 2)).tolist() == [[1., 2.], [3., 4.]]


def test_models_side_by_side(tmp_path):
    plot_entropy(dict(dense=STATISTICS, dcs=STATISTICS), tmp_path / 'entropy.png')
    images = [np.full((8, 8, 3), 200.), np.zeros((8, 8, 3))]
    maps = dict(dense=[np.eye(4)] * 2, dcs=[np.eye(2)] * 2)
    plot_maps(images, maps, tmp_path / 'maps.png', [(0.25, 0.5, 0.25, 0.25)] * 2)
    plot_maps(images, maps, tmp_path / 'overlay.svg', overlay=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        'entropy.png', 'maps.png', 'overlay.svg']
    pixels = matplotlib.image.imread(tmp_path / 'maps.png')[..., :3]
    red = (pixels == [1., 0., 0.]).all(-1)
    assert red[:pixels.shape[0] // 3].any() and not red[pixels.shape[0] // 2:].any()


def test_affinity_has_one_scale_an_image(tmp_path):
    """A spiked matrix beside a flat one: bright spots in its row alone."""
    spiked, flat = np.eye(8), np.full((8, 8), 1 / 8)
    plot_affinity([np.zeros((8, 8, 3))], dict(dense=[flat], dcs=[spiked]),
                  dict(dense=[np.log(8)], dcs=[0.]), tmp_path / 'affinity.png')
    pixels = matplotlib.image.imread(tmp_path / 'affinity.png')[..., :3]
    yellow = (np.abs(pixels - [0.993, 0.906, 0.144]) < 0.02).all(-1)  # viridis at its end
    third = len(pixels) // 3
    assert yellow[2 * third:].any() and not yellow[:2 * third].any()


def test_other_numbers_of_heads_are_refused(tmp_path):
    other = dict(STATISTICS, histogram=[[1., 0.]])
    with pytest.raises(ValueError, match="one number of heads, found {'a': 2, 'b': 1}"):
        plot_entropy(dict(a=STATISTICS, b=other), tmp_path / 'entropy.png')
    assert not list(tmp_path.iterdir())

"""Scores by truth, against the definition, and the interval of a difference of pairs."""

import numpy as np
import pytest
import torch
from PIL import Image

from lab import truth
from lab.truth import Seen, Truth


def test_overlap_and_area_are_those_of_the_definition():
    torch.manual_seed(0)
    masks, maps = torch.rand(5, 12, 12) > 0.7, torch.rand(5, 12, 12)
    maps[0] = masks[0].float()  # perfect
    maps[1] = 0.5  # says nothing
    found = truth.intersection_over_union(maps > 0.5, masks)
    area = truth.area_under_curve(maps, masks)
    for index in range(5):
        one, two = (maps[index] > 0.5).numpy(), masks[index].numpy()
        assert found[index] == pytest.approx((one & two).sum() / (one | two).sum())
        inside, outside = maps[index][masks[index]], maps[index][~masks[index]]
        pairs = inside[:, None] - outside[None]
        wanted = ((pairs > 0).float() + 0.5 * (pairs == 0).float()).mean()
        assert area[index] == pytest.approx(float(wanted), abs=2e-3)
    assert found[0] == area[0] == 1 and area[1] == 0.5
    empty = torch.zeros(1, 4, 4, dtype=torch.bool)
    assert truth.intersection_over_union(empty, empty) == 1


def test_the_threshold_is_that_of_the_dense_network_on_pictures_that_are_not_judged(monkeypatch):
    monkeypatch.setattr(truth, 'CHOSEN_ON', 2)
    masks = torch.rand(6, 8, 8, generator=torch.Generator().manual_seed(0)) > 0.5
    maps = 0.2 + 0.2 * masks.float()  # right at each threshold between 0.2 and 0.4
    known = Truth(torch.zeros(6, 3, 8, 8), masks, (torch.zeros(0), ) * 2, torch.zeros(0),
                  torch.tensor([0, 0, 1]))
    tokens = torch.eye(3)
    dense = Seen(maps, (tokens, tokens), tokens)
    scores = truth.score(known, dense, dense)
    assert scores[truth.MASK].tolist() == [1.] * 4  # of the four others
    shifted = truth.score(known, dense._replace(maps=maps + 0.5), dense)
    assert shifted[truth.MASK].mean() < 0.9  # another threshold would be right, but is not chosen
    assert shifted[truth.AREA].tolist() == [1.] * 4
    # what is judged does not choose
    other = dense._replace(maps=torch.cat((maps[:2], maps[2:] + 0.5)))
    assert truth.score(known, other, dense)[truth.MASK].tolist() == shifted[truth.MASK].tolist()


def test_nearest_symbols_and_classes():
    one = torch.tensor([[1., 0, 0], [0, 2, 0], [0, 0, 3]])
    assert truth.find_symbols((one, one[[0, 2, 1]])).tolist() == [1, 0, 0]
    objects = torch.tensor([[1., 0], [1, 0.1], [0, 1], [0.1, 1], [1, -0.1]])
    classes = torch.tensor([0, 0, 1, 1, 1])
    assert truth.match_classes(objects, classes).tolist() == [1, 1, 1, 1, 0]


def test_the_interval_is_of_pairs():
    rng = np.random.default_rng(0)
    dense = torch.tensor(rng.normal(size=400))
    alike = truth.compare(dense - 0.1, dense)
    assert alike.less == pytest.approx(-0.1) and alike.half == pytest.approx(0, abs=1e-9)
    other = dense + torch.tensor(rng.normal(0.2, 1, size=400))
    found = truth.compare(other, dense)
    assert found.half == pytest.approx(1.96 / 20, rel=0.1)
    assert abs(found.less - 0.2) < 2 * found.half
    assert str(found) == f'{found.less:+.3f} ± {found.half:.3f}'


def test_pictures_are_read_with_their_truth(tmp_path):
    for name in ('truth', 'classes/a', 'classes/b', 'emoji/one', 'emoji/two'):
        (tmp_path / name).mkdir(parents=True)
    for index in range(3):
        Image.new('RGB', (20, 20), 'red').save(tmp_path / f'truth/{index}.jpg')
        Image.new('L', (20, 20), 255 * (index == 1)).save(tmp_path / f'truth/{index}.png')
        Image.new('RGB', (9, 9)).save(tmp_path / f'classes/{"ab"[index // 2]}/{index}.jpg')
        for vendor in ('one', 'two'):
            Image.new('RGB', (8, 8), (index, 0, 0)).save(tmp_path / f'emoji/{vendor}/{index}.png')
    found = truth.read_truth(tmp_path, 14, 2)
    assert found.pictures.shape == (3, 3, 14, 14) and found.masks.shape == (3, 20, 20)
    assert found.masks.flatten(1).all(1).sum() == 1 and found.classes.tolist() == [0, 0, 1]
    assert all(torch.equal(*pair) for pair in zip(*found.symbols)) and len(found.symbols[0]) == 2
    with pytest.raises(FileNotFoundError, match='expected the emoji of two vendors'):
        (tmp_path / 'emoji/two').rename(tmp_path / 'two')
        truth.read_truth(tmp_path, 14, 2)

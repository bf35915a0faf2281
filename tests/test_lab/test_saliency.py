"""Agreement of two networks with a saliency decoder, against NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lab.saliency import agreement, picture


def test_agreement_is_that_of_the_definition():
    torch.manual_seed(0)
    networks = {name: (torch.randn(3, 16, 5), torch.rand(3, 1, 8, 8)) for name in ('dense', 'slim')}
    networks['dense'][1][2] = 0.1  # nothing is found: the image does not count
    found = agreement(networks['dense'], networks['slim'])
    (tokens, wanted), (others, maps) = ([values.numpy() for values in networks[name]]
                                        for name in ('dense', 'slim'))
    ious = [((a > 0.5) & (b > 0.5)).sum() / ((a > 0.5) | (b > 0.5)).sum()
            for a, b in zip(wanted[:2], maps[:2])]
    cosine = (tokens * others).sum(-1) / (np.linalg.norm(tokens, axis=-1)
                                          * np.linalg.norm(others, axis=-1))
    error = np.linalg.norm(others - tokens) / np.linalg.norm(tokens - tokens.mean((0, 1)))
    assert found['iou'] == pytest.approx(np.mean(ious), rel=1e-5)
    assert found['cosine'] == pytest.approx(cosine.mean(), rel=1e-4)
    assert found['error'] == pytest.approx(error, rel=1e-4)
    assert agreement(*[networks['dense']] * 2) == pytest.approx(dict(cosine=1, error=0, iou=1))


def test_a_picture_has_a_tile_for_each_network():
    from PIL import Image
    dense = SimpleNamespace(size=28, maps=lambda value, images: (None, torch.full(
        (len(images), 1, 224, 224), value)))
    red = Image.new('RGB', (60, 40), 'red')
    sheet = picture(dense, {'dense': 1., 'slim': 0.}, [red] * 2, 50, 10)
    assert sheet.size == (100, 180)
    assert [sheet.getpixel((75, y)) for y in (35, 95, 155)] == [
        (255, 0, 0), (255, 255, 255), (0, 0, 0)]

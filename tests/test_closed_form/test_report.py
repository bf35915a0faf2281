"""What is told of a compression before it begins."""

import re

import pytest
import timm
import torch
from torch import nn

from mmkcr.closed_form import given
from mmkcr.closed_form.compression import compress
from mmkcr.closed_form.profiles import STATISTICS
from mmkcr.closed_form.report import agreement

IMAGES = torch.randn(40, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Counter(nn.Module):
    """Counts images that pass, in all copies of a network."""

    images = 0

    def forward(self, x):
        Counter.images += len(x)
        return x


@pytest.mark.parametrize('groups', [1, 8])
def test_the_estimate_counts_all_passes(groups, monkeypatch, capsys):
    """With a second for an image forward, it is the images that run through a block."""
    torch.manual_seed(0)
    model = timm.create_model('vit_tiny_patch16_224', img_size=32, patch_size=8, embed_dim=32,
                              depth=4, num_heads=4, num_classes=5).eval()
    for block in model.blocks:
        block.mlp.drop1 = Counter()
    surveyed = given.survey
    monkeypatch.setattr(given, 'survey', lambda *args: surveyed(*args)._replace(
        seconds=(1., 0.)))
    if groups > 1:  # so little memory that each site is profiled alone
        monkeypatch.setattr('mmkcr.closed_form.profiles.STATISTICS', STATISTICS * 1e-12)
    Counter.images = 0
    compress(model, IMAGES, '60%', None, (3, 32, 32))
    told, unit = re.search(r'passes take about (\d+) (s|min)', capsys.readouterr().err).groups()
    seconds = int(told) * (60 if unit == 'min' else 1)
    assert seconds == pytest.approx(Counter.images / 4, rel=0.2)


def test_something_is_said_before_an_image_is_run(capsys):
    """The first passes of a large network take minutes."""
    said = []

    def forward(network, batch):
        said.append(capsys.readouterr().err)
        return network(batch)

    model = timm.create_model('vit_tiny_patch16_224', img_size=32, patch_size=8, embed_dim=32,
                              depth=1, num_heads=4, num_classes=5).eval()
    compress(model, IMAGES[:4], '80%', None, (3, 32, 32), forward=forward)
    assert said[0] == 'Calibration: looking at a VisionTransformer and the first images\n'


@pytest.mark.parametrize(('shape', 'vectors'), [
    ((4, 5), lambda out: out), ((4, 6, 5), lambda out: out.reshape(-1, 5)),
    ((4, 5, 2, 3), lambda out: out.movedim(1, -1).reshape(-1, 5)),
    ((4, 1, 2, 3), lambda out: out.reshape(4, -1)), ((4, 1), lambda out: out),
    ((4, ), lambda out: out[None])])
def test_the_cosine_is_the_mean_over_vectors_of_features(shape, vectors):
    """Of maps over channels, of tokens over the last axis; of what has one channel over all."""
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(3, *shape, generator=generator) for _ in range(2))
    network, outputs = nn.Identity(), {True: ours, False: theirs}
    found = agreement(network, None, [torch.tensor([[number]]) for number in range(3)],
                      lambda model, batch: outputs[model is None][int(batch)])
    cosines = [torch.cosine_similarity(vectors(a), vectors(b), 1) for a, b in zip(ours, theirs)]
    assert found['cosine'] == pytest.approx(float(torch.cat(cosines).mean()), abs=1e-6)

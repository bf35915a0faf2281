"""Masks that are neither 0 nor 1 when a search ends: slicing folds them into the weights."""

import pytest
import torch
from torch import nn

from lab.kind_coverage import FAMILIES, law_error, randomise
from mmkcr.models import Searchable
from mmkcr.models.slicing import apply_decisions

GATE = dict(type='mmkcr.BiMaskGate')


@pytest.mark.parametrize('name, kind', [
    *((name, 'mlp_channels') for name in (
        'ViT', 'Swin', 'EVA-02', 'XCiT', 'MobileViT', 'PVT', 'timm DeiT III', 'EfficientViT')),
    ('EfficientViT', 'attention_outputs')])
def test_a_mask_that_is_no_0_or_1_folds(name, kind):
    """A bi-mask that is decided stays a scale of the units, which slicing folds."""
    if FAMILIES[name].library == 'timm':
        pytest.importorskip('timm')
    error, moved = law_error(FAMILIES[name], [kind], 1, gates={kind: GATE})
    assert error < 1e-12 and moved > 1e-6


@pytest.mark.parametrize('name', ['ViT', 'Swin', 'EfficientViT'])
def test_channels_that_are_sliced_and_folded_while_they_train(name):
    torch.manual_seed(0)
    model = Searchable(FAMILIES[name].build(), sites=['mlp_channels'], gates=GATE)
    model = randomise(model.double())
    space, images = model.search_space, torch.randn(2, 3, 64, 64, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters())
    for most in (3, 1):
        for gate in space.gates().values():
            gate.restrict(gate.alive & (torch.arange(gate.alive.numel()) < most))
        model.train()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
            elif hasattr(module, 'drop_prob'):
                module.drop_prob = 0.
        expected = model(images)
        assert apply_decisions(space.sites, optimizer)
        for one, other in zip(expected, model(images)):
            scale = float(one.detach().abs().max())
            torch.testing.assert_close(other, one, rtol=0, atol=1e-12 * scale)
    assert all(gate.folded and gate.present < gate.total for gate in space.gates().values())

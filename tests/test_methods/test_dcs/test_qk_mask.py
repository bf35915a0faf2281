"""The mask on queries and keys: straight-through gradient, seeded noise."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mmkcr.core.gate import logistic_noise
from mmkcr.methods.dcs.qk_mask import QKMask


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def close(one, two, tolerance=1e-12):
    torch.testing.assert_close(one, two, rtol=0,
                               atol=tolerance * max(1., float(two.detach().abs().max())))


def mask_of(channels=6, **kwargs):
    mask = QKMask(4, channels, **kwargs)
    nn.init.normal_(mask.weight)
    nn.init.normal_(mask.bias)
    return mask


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9999), st.floats(1e-3, 5), st.booleans(), st.booleans())
def test_formula_and_straight_through_gradient(seed, temperature, maps, separate):
    torch.manual_seed(seed)
    mask = mask_of(maps=maps, separate=separate, temperature=temperature).double()
    mask.resample(seeded(seed))
    x = (torch.randn(3, 4, 2, 5) if maps else torch.randn(3, 10, 4)).double()
    tokens = x.flatten(2).transpose(1, 2) if maps else x
    theta = F.linear(tokens, mask.weight, mask.bias)
    if maps:
        theta = theta.transpose(1, 2).unflatten(2, (2, 5))
    logits, rows = mask(x), 1 if maps else -2
    assert logits.shape[rows] == (2 if separate else 1)  # of queries and of keys, or of both
    close(logits.flatten(rows, rows + 1), theta)  # a convolution rounds in another way
    noise = logistic_noise(logits.shape[1:], seeded(mask._seed))
    noisy = theta + noise.flatten(rows - (rows > 0), rows - (rows > 0) + 1)
    both = mask.binarize(logits).flatten(rows, rows + 1)
    assert torch.equal(both, (noisy > 0).double())  # exactly 0 and 1 in the forward
    upstream = torch.randn_like(both)
    found = torch.autograd.grad((both * upstream).sum(), mask.bias)[0]
    soft = torch.sigmoid(noisy / temperature)
    expected = torch.autograd.grad((soft * upstream).sum(), mask.bias)[0]
    close(found, expected, 1e-6 / temperature)  # the sigmoid is computed in fp32
    # inference: no noise
    assert torch.equal(mask.eval().binarize(logits).flatten(rows, rows + 1), (theta > 0).double())
    mask.held_open = True
    assert (mask.binarize(logits) == 1).all()


def test_noise_depends_on_the_generator_alone_and_is_shared_by_the_batch():
    one, two = mask_of().double(), mask_of().double()
    for mask in (one, two):
        mask.resample(seeded(5))
    theta = torch.zeros(4, 7, 6)
    noise = one.noise_like(theta)
    assert torch.equal(noise, two.noise_like(theta[:1])) and noise.shape == (7, 6)
    assert torch.equal(noise, one.noise_like(theta))  # a recomputed block sees the same
    assert torch.equal(one.noise_like(theta.double()).float(), noise)
    one.resample(seeded(6))
    assert not torch.equal(one.noise_like(theta), noise)
    # ranks with halves of a batch see what one process with the whole batch does
    theta = one(torch.randn(4, 7, 4).double())
    halves = torch.cat([one.binarize(theta[:2]), one.binarize(theta[2:])])
    assert torch.equal(halves, one.binarize(theta))


def test_without_a_draw_training_has_no_noise_and_starts_open():
    mask = QKMask(4, 6)
    assert torch.equal(mask.binarize(mask(torch.randn(2, 5, 4))), torch.ones(2, 5, 1, 6))
    share = 0
    for seed in range(50):
        mask.resample(seeded(seed))
        share += mask.binarize(mask(torch.zeros(1, 20, 4))).mean().item() / 50
    assert share == pytest.approx(torch.sigmoid(torch.tensor(2.)).item(), abs=0.02)


def test_half_precision_and_low_temperature_stay_finite():
    mask = mask_of(temperature=1e-3)
    mask.resample(seeded(0))
    with torch.autocast('cpu', torch.bfloat16):
        out = mask.binarize(mask(torch.randn(2, 5, 4)))
        out.sum().backward()
    assert mask.weight.grad.isfinite().all() and set(out.unique().tolist()) <= {0., 1.}


def test_bad_arguments():
    with pytest.raises(ValueError, match='positive mask `temperature`, found 0'):
        QKMask(4, 4, temperature=0)

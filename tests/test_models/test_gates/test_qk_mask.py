"""The mask on queries and keys: straight-through gradient, seeded noise, fused projection."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mmkcr.models.gates import QKMask
from mmkcr.models.gates.noise import logistic_noise


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def mask_of(channels=6, **kwargs):
    mask = QKMask(4, channels, **kwargs)
    nn.init.normal_(mask.weight)
    nn.init.normal_(mask.bias)
    return mask


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9999), st.floats(1e-3, 5), st.booleans(), st.booleans())
def test_formula_and_straight_through_gradient(seed, temperature, maps, separate):
    torch.manual_seed(seed)
    mask = mask_of(maps=maps, separate=separate, temperature=temperature)
    mask.resample(seeded(seed))
    x = torch.randn(3, 4, 2, 5) if maps else torch.randn(3, 10, 4)
    tokens = x.flatten(2).transpose(1, 2) if maps else x
    theta = F.linear(tokens, mask.weight, mask.bias)
    if maps:
        theta = theta.transpose(1, 2).unflatten(2, (2, 5))
    noisy = theta + logistic_noise(theta.shape[1:], seeded(mask._seed))
    parts = mask(x)
    expected = (noisy > 0).float()
    both = torch.cat(parts, 1 if maps else -1) if separate else parts[0]
    assert torch.equal(both, expected)  # exactly 0 and 1 in the forward
    assert separate or parts[0] is parts[1]
    upstream = torch.randn_like(both)
    found = torch.autograd.grad((both * upstream).sum(), mask.bias)[0]
    soft = torch.sigmoid(noisy / temperature)
    expected = torch.autograd.grad((soft * upstream).sum(), mask.bias)[0]
    torch.testing.assert_close(found, expected)
    # inference: no noise
    assert torch.equal(mask.eval()(x)[0], (theta > 0).float().chunk(2, 1 if maps else -1)[0]
                       if separate else (theta > 0).float())


def test_noise_depends_on_the_generator_alone_and_is_shared_by_the_batch():
    one, two = mask_of(), mask_of()
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
    x = torch.randn(4, 7, 4)
    whole = one(x)[0]
    assert torch.equal(torch.cat([one(x[:2])[0], one(x[2:])[0]]), whole)


def test_without_a_draw_training_has_no_noise_and_starts_open():
    mask = QKMask(4, 6)
    assert torch.equal(mask(torch.randn(2, 5, 4))[0], torch.ones(2, 5, 6))
    share = 0
    for seed in range(50):
        mask.resample(seeded(seed))
        share += mask(torch.zeros(1, 20, 4))[0].mean().item() / 50
    assert share == pytest.approx(torch.sigmoid(torch.tensor(2.)).item(), abs=0.02)


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('maps', [True, False])
def test_fused_projection_follows_the_weights(bias, maps):
    mask = mask_of(maps=maps).eval()
    projection = nn.Conv2d(4, 9, 1, bias=bias) if maps else nn.Linear(4, 9, bias)
    x = torch.randn(2, 4, 3, 3) if maps else torch.randn(2, 3, 4)

    def check():
        out = (F.conv2d if maps else F.linear)(x, *mask.fused(projection))
        own, theta = out.split([9, 6], 1 if maps else -1)
        torch.testing.assert_close(own, projection(x))
        assert torch.equal(mask.binarize(theta)[0], mask(x)[0])

    with torch.no_grad():
        check()
        kept = mask.fused(projection)[0]
        assert mask.fused(projection)[0] is kept  # not computed again
        mask.weight.add_(1.)
        check()
        projection.load_state_dict({key: value * 2 for key, value in
                                    projection.state_dict().items()})
        check()
        mask.bias.data.add_(5.)
        mask.eval()
        check()
    assert set(mask.state_dict()) == {'weight', 'bias'}


def test_half_precision_and_low_temperature_stay_finite():
    mask = mask_of(temperature=1e-3)
    mask.resample(seeded(0))
    with torch.autocast('cpu', torch.bfloat16):
        out = mask(torch.randn(2, 5, 4))[0]
        out.sum().backward()
    assert mask.weight.grad.isfinite().all() and set(out.unique().tolist()) <= {0., 1.}


def test_bad_arguments():
    with pytest.raises(ValueError, match='positive mask `temperature`, found 0'):
        QKMask(4, 4, temperature=0)

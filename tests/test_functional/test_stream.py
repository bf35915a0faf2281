"""One subspace for a residual stream, by selection and by rotation."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mmkcr.functional.moments import moments_of
from mmkcr.functional.pivots import reconstruction_error
from mmkcr.functional.refit import output_error, refit, refit_output
from mmkcr.functional.stream import consumers_order, stream_rotation

exactly = settings(derandomize=True, deadline=None, max_examples=25)
norms = pytest.mark.parametrize('norm', ['layer', 'rms'])


class Net(nn.Module):
    """Pre-norm MLP blocks on a residual stream, with a table of positions and a head."""

    def __init__(self, dim, norm, seed, depth=3, tokens=4):
        super().__init__()
        torch.manual_seed(seed)
        make = nn.LayerNorm if norm == 'layer' else nn.RMSNorm
        self.embed, self.positions = nn.Linear(5, dim), nn.Parameter(torch.randn(tokens, dim))
        self.norms = nn.ModuleList(make(dim, eps=1e-2) for _ in range(depth + 1))
        self.first = nn.ModuleList(nn.Linear(dim, 6) for _ in range(depth))
        self.second = nn.ModuleList(nn.Linear(6, dim) for _ in range(depth))
        self.head = nn.Linear(dim, 3)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=.7)
        self.double()

    def forward(self, x):
        x, self.seen = self.embed(x) + self.positions, []
        for norm, first, second in zip(self.norms, self.first, self.second):
            self.seen.append(x)
            x = x + second(F.gelu(first(norm(x))))
        self.seen.append(x)
        return self.head(self.norms[-1](x))


def normalised(x, norm):
    """Output of a norm before its affine part, (n, D)."""
    x = x.flatten(0, 1)
    if norm == 'layer':
        return F.layer_norm(x, x.shape[-1:], eps=1e-2)
    return F.rms_norm(x, x.shape[-1:], eps=1e-2)


def narrow(net, norm, width, inputs, with_refit):
    """The network on a stream of that width, rotated."""
    dim = net.embed.out_features
    net(inputs)
    rows = [normalised(x, norm) for x in net.seen]
    rotation = stream_rotation(sum(moments_of(row).second_moment for row in rows), width, norm)
    new = Net(width, norm, 0)

    def put(layer, weight, bias):
        layer.weight.data, layer.bias.data = weight, bias

    put(new.embed, *rotation.producer(net.embed.weight.data, net.embed.bias.data))
    new.positions.data = rotation.producer(net.positions.data.T)[0].T
    for old, own in zip(net.second, new.second):
        put(own, *rotation.producer(old.weight.data, old.bias.data))
    for old, own, before, after, row in zip([*net.first, net.head], [*new.first, new.head],
                                            net.norms, new.norms, rows):
        moments = moments_of(row)
        data = dict(covariance=moments.covariance, mean=moments.mean) if with_refit else {}
        put(own, *rotation.consumer(old.weight.data, old.bias.data, before.weight.data,
                                    getattr(before, 'bias', None), **data))
        after.weight.data.fill_(1.)
        if norm == 'layer':
            after.bias.data.zero_()
        after.eps = rotation.eps(before.eps)
    assert rotation.basis.shape == (dim, width)
    return new


@norms
@pytest.mark.parametrize('with_refit', [False, True])
@given(dim=st.integers(2, 9), seed=st.integers(0, 10**6))
@exactly
def test_a_rotation_of_full_width_changes_nothing(norm, with_refit, dim, seed):
    net = Net(dim, norm, seed)
    inputs = torch.randn(5, 4, 5, dtype=torch.float64)
    with torch.no_grad():
        expected = net(inputs)
        found = narrow(net, norm, dim, inputs, with_refit)(inputs)
    assert torch.allclose(found, expected, atol=1e-9 * float(expected.abs().max() + 1))


@norms
@pytest.mark.parametrize('with_refit', [False, True])
def test_a_stream_of_low_rank_becomes_narrow_without_loss(norm, with_refit):
    """Producers write 5 directions of 20 channels (and their mean, which LayerNorm drops)."""
    net, dim = Net(20, norm, 0), 20
    plane = torch.randn(dim, 5, dtype=torch.float64)
    for layer in (net.embed, *net.second):
        layer.weight.data = plane @ torch.randn(5, layer.in_features, dtype=torch.float64)
        layer.bias.data = plane @ torch.randn(5, dtype=torch.float64)
    net.positions.data = torch.randn(4, 5, dtype=torch.float64) @ plane.T
    inputs = torch.randn(9, 4, 5, dtype=torch.float64)
    with torch.no_grad():
        expected = net(inputs)
        found = narrow(net, norm, 6 if norm == 'layer' else 5, inputs, with_refit)(inputs)
        fewer = narrow(net, norm, 4, inputs, with_refit)(inputs)
    assert torch.allclose(found, expected, atol=1e-6 * float(expected.abs().max()))
    assert not torch.allclose(fewer, expected, atol=1e-2 * float(expected.abs().max()))


@norms
def test_a_truncated_consumer_is_refitted_and_not_worse(draw_rows, norm):
    rows = normalised(draw_rows(60, 12, 12, 0).unsqueeze(0), norm)
    weight, gamma = draw_rows(4, 12, 4, 1), draw_rows(1, 12, 1, 2)[0]
    moments = moments_of(rows)
    rotation = stream_rotation(moments.second_moment, 5, norm)
    targets = rows @ (weight * gamma).T
    inputs = rows @ rotation.basis / rotation.scale  # as a norm that still divided exactly
    after = moments_of(inputs, targets)
    plain, bias = rotation.consumer(weight, None, gamma)
    assert bias is None
    errors = [float(output_error(after, plain))]
    for rho in (1e-6, 1e-3, 1.):
        refitted, bias = rotation.consumer(weight, None, gamma, None, moments.covariance,
                                           moments.mean, rho)
        errors.append(float(output_error(after, refitted, bias)))
        assert errors[-1] <= errors[0] * (1 + 1e-9)
    best, bias = refit_output(after, plain, 1e-6)
    assert errors[1] == pytest.approx(float(output_error(after, best, bias)), rel=1e-6)


@norms
def test_a_basis_is_orthonormal_and_follows_the_variance(draw_rows, norm):
    moment = moments_of(draw_rows(50, 10, 10, 0)).second_moment
    total = float(stream_rotation(moment, 10, norm).basis.square().sum())
    assert total == pytest.approx(9 if norm == 'layer' else 10)
    kept = []
    for width in range(2, 11):
        basis = stream_rotation(moment, width, norm).basis
        projector = basis @ basis.T
        assert torch.allclose(projector @ projector, projector)
        kept.append(float((moment * projector).sum()))
        if norm == 'layer':  # the stream's mean is dropped, and channels have mean 0
            assert torch.allclose(basis.sum(0), torch.zeros(width, dtype=torch.float64))
            assert torch.allclose(basis.sum(1), torch.zeros(10, dtype=torch.float64))
    assert kept == sorted(kept)
    if norm == 'rms':
        assert kept[0] == pytest.approx(float(torch.linalg.eigvalsh(moment)[-2:].sum()))


def test_convolutions_and_tables_are_rotated(draw_rows):
    rotation = stream_rotation(moments_of(draw_rows(50, 6, 6, 0)).second_moment, 4, 'rms')
    conv = nn.Conv2d(3, 6, 2, 2)
    weight, bias = rotation.producer(conv.weight.data, conv.bias.data)
    images = torch.randn(2, 3, 4, 4)
    expected = torch.einsum('dr,bdhw->brhw', rotation.basis.float(), conv(images))
    assert torch.allclose(F.conv2d(images, weight, bias, stride=2), expected, atol=1e-5)
    assert weight.dtype == torch.float32


def test_selection_weighs_all_consumers(draw_rows):
    consumers = [(draw_rows(3, 8, 3, seed), moments_of(draw_rows(40, 8, 8, seed + 9)).covariance)
                 for seed in range(3)]
    order = consumers_order(consumers, rho=1e-8)
    assert float(order.errors[0]) == pytest.approx(3, rel=1e-5)
    for k in (2, 5):
        kept = order.kept(k)
        relative = [
            reconstruction_error(covariance, weight.T @ weight, kept, 1e-8)
            / float((weight.T @ weight * covariance).sum()) for weight, covariance in consumers]
        assert float(order.errors[k]) == pytest.approx(sum(relative), rel=1e-5)
    scaled = [(weight * 10**i, covariance) for i, (weight, covariance) in enumerate(consumers)]
    assert torch.equal(consumers_order(scaled, rho=1e-8).order, order.order)
    absolute = consumers_order(scaled, relative=False)
    alone = consumers_order(scaled[-1:], relative=False)
    assert torch.equal(absolute.kept(4), alone.kept(4))


def test_a_selected_stream_with_its_norm(draw_rows):
    """A norm over fewer channels: the refit on its own outputs is not worse than selection."""
    stream, weight = draw_rows(80, 12, 6, 0), draw_rows(4, 12, 4, 1)
    dense = F.layer_norm(stream, (12, ))
    moments = moments_of(dense)
    kept = consumers_order([(weight, moments.covariance)]).kept(7)
    inputs = F.layer_norm(stream[:, kept], (7, ))
    after = moments_of(inputs, dense @ weight.T)
    selected = float(output_error(after, weight[:, kept]))
    prior, _ = refit(weight, None, moments.covariance, moments.mean, kept)
    for rho in (1e-6, 1e-3, 1.):
        new, bias = refit_output(after, weight[:, kept], rho)
        assert float(output_error(after, new, bias)) <= selected * (1 + 1e-9)
        new, bias = refit_output(after, prior, rho)
        assert float(output_error(after, new, bias)) <= \
            float(output_error(after, prior)) * (1 + 1e-9)


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match='within 2 and 4, found `layer` and 1'):
        stream_rotation(torch.eye(4), 1)
    with pytest.raises(ValueError, match='found `batch` and 3'):
        stream_rotation(torch.eye(4), 3, 'batch')

"""Convolutions in the place of heads: least squares of attention, and of what reads them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models import VisionTransformer

from mmkcr.closed_form.kernel_fit import HeadKernels, KernelMoments
from mmkcr.models.layers.head_operators import DepthwiseHeads
from mmkcr.models.search_space import SearchSpace


@settings(derandomize=True, deadline=None, max_examples=10)
@given(heads=st.integers(1, 3), extra=st.integers(0, 2), seed=st.integers(0, 10**6),
       hw=st.tuples(st.integers(2, 4), st.integers(2, 4)))
def test_a_fitted_operator_is_least_squares(heads, extra, seed, hw):
    generator = torch.Generator().manual_seed(seed)
    tokens, channels = extra + hw[0] * hw[1], 2 * heads
    values = torch.randn(8, tokens, channels, dtype=torch.float64, generator=generator) + 1
    maps = torch.randn(8, tokens, tokens, dtype=torch.float64, generator=generator).softmax(-1)
    targets = maps @ values
    operator = DepthwiseHeads(heads, 2, extra).double()

    def errors():
        missing = (operator.mix(values, hw) - targets).detach().square().sum(0)
        return missing[:extra].sum(), missing[extra:].sum(0)  # of extra tokens; by channel

    before = errors()
    moments = KernelMoments(operator, 'heads')
    for part in (slice(0, 3), slice(3, 8)):
        moments.add(values[part], targets[part], hw)
    moments.fit(rho=0.)
    after = errors()
    assert after[0] <= before[0] + 1e-9 and (after[1] <= before[1] + 1e-9).all()
    mean = values[:, extra:].mean(1)
    for token in range(extra):
        for head in range(heads):
            own = slice(2 * head, 2 * head + 2)
            wanted = (targets - values)[:, token, own].reshape(-1, 1)
            best = torch.linalg.lstsq(mean[:, own].reshape(-1, 1), wanted).solution
            assert operator.exchange.from_patches[token, head].item() == pytest.approx(float(best))
    # no other taps are nearer
    for parameter in operator.conv.parameters():
        step = 1e-3 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
        for sign in (1, -1):
            parameter.data += sign * step
            assert (errors()[1] >= after[1] - 1e-9).all()
            parameter.data -= sign * step


def test_losses_of_heads_are_those_of_the_projection():
    torch.manual_seed(0)
    arch = dict(embed_dims=16, num_layers=1, num_heads=4, feedforward_channels=16)
    model = VisionTransformer(arch=arch, img_size=32, patch_size=8).double()
    model.eval()
    site, = SearchSpace.of_dense(model, ['head_operator']).sites.values()
    images, layer = torch.randn(40, 3, 32, 32).double(), site.owner.proj
    kernels, caught = HeadKernels(site, 10**6, 1e-9), []
    with kernels, torch.no_grad():
        model(images)
        kernels.fit()
        handle = layer.register_forward_hook(
            lambda _, args, out: caught.append(kernels.rows_of(layer, args[0])))
        model(images)
        handle.remove()
    rows, weight = caught[0], layer.weight.detach()
    dense = rows[:, :16] @ weight.T
    lost = (rows[:, 16:] - rows[:, :16]).unflatten(1, (4, 4))
    order, losses = kernels.order(torch.eye(16))
    assert sorted(order.tolist()) == list(range(4)) and (losses.diff() <= 0).all()
    kept = [order[:count].sort().values for count in range(4)]
    change = kernels.change(kept)
    for count, units in enumerate(kept):
        gone = [head for head in range(4) if head not in units]
        moved = lost[:, gone].flatten(1) @ weight.unflatten(1, (4, 4))[:, gone].flatten(1).T
        assert float(losses[count]) == pytest.approx(float(moved.var(0, correction=0).sum()))
        # the projection refitted: least squares with a bias
        inputs = rows.unflatten(1, (2, 4, 4))
        inputs = torch.cat([inputs[:, 0, units].flatten(1), inputs[:, 1, gone].flatten(1),
                            torch.ones(len(rows), 1)], 1)
        best = inputs @ torch.linalg.lstsq(inputs, dense, driver='gelsd').solution
        found = dense + (rows - change.mean) @ change.deltas[count].T
        torch.testing.assert_close(found, best, rtol=0, atol=1e-5 * float(dense.abs().max()))
        assert float((best - dense).square().sum(1).mean()) <= float(losses[count]) + 1e-9
    assert change.rows == kernels.rows_of

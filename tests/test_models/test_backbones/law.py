"""What two networks of a law give, compared."""

import torch


def outputs(model, x):
    """Of images in the precision of the weights."""
    with torch.no_grad():
        return model(x.to(next(model.parameters())))


def assert_same(one, two, tolerance=1e-12):
    """Relative to the largest output; by default of two networks in fp64."""
    assert len(one) == len(two) > 0
    for a, b in zip(one, two):
        assert a.shape == b.shape and torch.isfinite(a).all()
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * float(a.abs().max()))

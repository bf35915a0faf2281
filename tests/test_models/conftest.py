"""Fixtures of the tests of models."""

import pytest


@pytest.fixture(scope='module')
def exact_positions():
    """Hosts resize position embeddings in fp32; with this they do it in fp64 if they are fp64."""
    import torch
    convert = torch.Tensor.float

    def keep(tensor, *args, **kwargs):
        return tensor if tensor.dtype == torch.float64 else convert(tensor, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, 'float', keep)
        yield

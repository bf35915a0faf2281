"""Fixtures of the tests of models."""

import pytest
import torch


@pytest.fixture(scope='session')
def with_exact_features():
    """Lets the backbone of a task model compute in fp64, and give its features rounded to fp32.

    Backbones that are equal up to the rounding of fp64 then give equal features, so that what
    decides by thresholds behind them (samplers, suppression, labels) decides alike.
    """
    def change(model):
        backbone = model.backbone.double()
        backbone.register_forward_pre_hook(lambda _, args: (args[0].double(), ))
        backbone.register_forward_hook(lambda _, args, outs: tuple(out.float() for out in outs))
        return model

    return change


@pytest.fixture(scope='module')
def exact_positions():
    """Hosts resize position embeddings in fp32; with this they do it in fp64 if they are fp64."""
    convert = torch.Tensor.float

    def keep(tensor, *args, **kwargs):
        return tensor if tensor.dtype == torch.float64 else convert(tensor, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, 'float', keep)
        yield

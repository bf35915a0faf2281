"""Eval mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module has its own mode again.

    Args:
        model (nn.Module): Its parts may be in different modes (frozen stages, norms).
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode

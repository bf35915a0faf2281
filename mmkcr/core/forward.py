"""Forward passes: in eval mode, their outputs as a list, and leaving one early."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from torch import Tensor, nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module has its own mode again, as frozen stages have."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def flat_tensors(outputs: Any, floating: bool = True) -> list[Tensor]:
    """The tensors, or the tensors of floating point, in nested sequences, dicts and dataclasses."""
    if isinstance(outputs, Tensor):
        return [outputs] if outputs.is_floating_point() or not floating else []
    if isinstance(outputs, (str, bytes)):  # a character is a text again
        return []
    if isinstance(outputs, Mapping):  # also outputs of Hugging Face
        outputs = outputs.values()
    elif dataclasses.is_dataclass(outputs):
        outputs = [getattr(outputs, field.name) for field in dataclasses.fields(outputs)]
    if hasattr(outputs, '__iter__'):
        return [tensor for part in outputs for tensor in flat_tensors(part, floating)]
    return []


class Reached(Exception):
    """Raised to leave a forward whose rest is not needed."""


@contextmanager
def stop_after(module: nn.Module | None, calls: int = 1) -> Iterator[None]:
    """Within the block a forward ends behind a call of a module, by an error that it catches.

    Args:
        module (nn.Module, optional): With None the forward runs through.
        calls (int): Number of the call. Defaults to 1.
    """
    left = [calls]

    def leave(*_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Reached

    handle = module.register_forward_hook(leave) if module is not None else None
    try:
        with suppress(Reached):
            yield
    finally:
        if handle is not None:
            handle.remove()

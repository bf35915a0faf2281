"""Conversion of a layer to another class that takes over its parts."""

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn

Layer = TypeVar('Layer', bound=nn.Module)


def is_patched(module: nn.Module) -> bool:
    """Tell whether a module computes something else than its class says.

    Its class's own method, bound to it, changes nothing: transformers 4.57 leaves one on the layers
    of a network that was called with ``output_attentions=True``.
    """
    forward = vars(module).get('forward')
    own = getattr(forward, '__func__', None) is type(module).forward and \
        forward.__self__ is module
    return forward is not None and not own


def take_over(cls: type[Layer], module: nn.Module, without: Sequence[str] = (),
              **attributes: Any) -> Layer:
    """A layer of another class with the parts of a given one, under their own names.

    The given layer, which is not used afterwards, gives its parameters, buffers, children, hooks
    and plain attributes, ``without`` some names. Others are added. A ``forward`` of the
    instance would compute as the former class, and is left out.
    """
    new = cls.__new__(cls)  # not `__init__`, which would make new parameters
    # copies of the dicts of parameters, children and hooks, so that the layers do not share them
    new.__dict__ = {key: value.copy() if isinstance(value, dict) else value
                    for key, value in module.__dict__.items() if key not in (*without, 'forward')}
    for name in without:
        new._modules.pop(name, None)
    for name, value in attributes.items():
        setattr(new, name, value)
    return new

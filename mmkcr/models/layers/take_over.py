"""A layer of another class with the parts of a given one."""

from typing import Any, Sequence, Type, TypeVar

from torch import nn

Layer = TypeVar('Layer', bound=nn.Module)


def take_over(cls: Type[Layer], module: nn.Module, without: Sequence[str] = (),
              **attributes: Any) -> Layer:
    """A layer of another class with the parts of a given one, under their own names.

    Args:
        cls (type): The new layer's class.
        module (nn.Module): Gives parameters, buffers, children, hooks and plain attributes; not
            to be used any more.
        without (Sequence[str]): Children and attributes that are left out.
        **attributes: Children and plain attributes that are added.

    Returns:
        nn.Module: The new layer.
    """
    new = cls.__new__(cls)
    new.__dict__ = {key: value.copy() if isinstance(value, dict) else value
                    for key, value in module.__dict__.items() if key not in without}
    for name in without:
        new._modules.pop(name, None)
    for name, value in attributes.items():
        setattr(new, name, value)
    return new

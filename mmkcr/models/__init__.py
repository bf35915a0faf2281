"""Backbones, gates, layers, losses and algorithms."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """A class of :mod:`.registered`, which imports the host libraries."""
    if not name[0].isupper():  # a module, or nothing
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(f'{__name__}.registered'), name)

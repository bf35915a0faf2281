"""Backbones, gates, layers, losses and algorithms."""

from importlib import import_module
from typing import Any

from mmkcr.hosts import prepare_hosts


def __getattr__(name: str) -> Any:
    """A class of :mod:`.registered`, which imports the host libraries once they are prepared."""
    if not name[0].isupper():  # a module, or nothing
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    prepare_hosts()
    return getattr(import_module(f'{__name__}.registered'), name)

"""Imports that wait until something is needed, so that importing this package costs nothing."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package.

    Args:
        package (str): Its name.
        homes (Mapping[str, str]): The module that holds each name, without a dot one of the
            package.

    Returns:
        Callable: Imports the module of a name; other names raise an ``AttributeError``.
    """

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f'module {package!r} has no attribute {name!r}')
        home = homes[name]
        return getattr(import_module(home if '.' in home else f'{package}.{home}'), name)

    return __getattr__


def is_of(module: Any, path: str) -> bool:
    """Whether an object is of a class of a library, which is not imported for the question.

    Args:
        module (Any): The object.
        path (str): Module and name of the class, such as ``'mmengine.model.BaseModel'``.
    """
    library, _, name = path.rpartition('.')
    cls = getattr(sys.modules.get(library), name, None)
    return cls is not None and isinstance(module, cls)

"""Arguments of a command from the fields of a frozen dataclass.

A field's name, annotation and default become the argument's name, type and default; what only a
reader of the help needs is given to :func:`argument`. So an option is written once.
"""

import argparse
import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from mmengine.config import DictAction

from mmkcr.cli.command import Parser, command, quiet_hosts


def argument(help: str, default: Any = None, *, positional: bool = False,
             group: str | None = None, **settings: Any) -> Any:
    """A field of a command's dataclass.

    Args:
        help (str): The help; ``%(default)s`` is the default.
        default (Any): Of an option. Defaults to None.
        positional (bool): Whether it has no ``--``. Defaults to False.
        group (str, optional): Options of one group exclude each other; one of a group whose name
            ends with ``!`` is required. Defaults to None.
        **settings: Of :meth:`argparse.ArgumentParser.add_argument`, such as ``choices``,
            ``metavar`` and ``nargs``; ``names`` are more spellings.
    """
    if isinstance(default, list):
        made = dict(default_factory=lambda: list(default))
        help = help.replace('%(default)s', ' '.join(map(str, default)))
    else:
        made = {} if positional and settings.get('nargs') is None else dict(default=default)
    return dataclasses.field(kw_only=not positional, **made, metadata=dict(
        settings, help=help, positional=positional, group=group, default=default))


def _add_arguments(parser: argparse.ArgumentParser, job: type) -> None:
    """Add the fields of a dataclass, which are of :func:`argument`, to a parser."""
    hints, groups = typing.get_type_hints(job), {}
    for field in dataclasses.fields(job):
        settings = dict(field.metadata)
        name, group = field.name.replace('_', '-'), settings.pop('group')
        if group is not None and group not in groups:
            groups[group] = parser.add_mutually_exclusive_group(required=group.endswith('!'))
        target = groups.get(group, parser)
        if settings.pop('positional'):
            target.add_argument(field.name, **settings)
        else:
            names = (f'--{name}', *settings.pop('names', ()))
            target.add_argument(*names, dest=field.name,
                                **{**_of_type(hints[field.name]), **settings})


def _of_type(hint: Any) -> dict[str, Any]:
    """What an annotation says: a flag, one value of a type, or several in a list."""
    if isinstance(hint, types.UnionType):
        hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    origin = typing.get_origin(hint) or hint
    if origin is bool:
        return dict(action='store_true')
    if origin is dict:
        return dict(nargs='+', action=DictAction)
    if origin is list:
        return dict(nargs='+', type=typing.get_args(hint)[0])
    return dict(type=origin)


def runs(job: type, quiet: bool = True) -> Callable[[Callable[[Any], Any]], Callable]:
    """Decorate ``main(job)``: a command of ``main(argv=None)`` that parses the dataclass's fields.

    The command's help is the docstring of its module; ``main.parser()`` makes its parser. The
    notices of the host libraries stay out of the output of a quiet one.
    """
    def decorate(run: Callable[[Any], Any]) -> Callable:
        def parser() -> Parser:
            made = Parser(sys.modules[run.__module__].__doc__)
            _add_arguments(made, job)
            return made

        @command
        @functools.wraps(run)
        def main(argv: Sequence[str] | None = None) -> Any:
            values = vars(parser().parse_args(argv))
            if quiet:
                quiet_hosts()
            return run(job(**{field.name: values[field.name]
                              for field in dataclasses.fields(job)}))

        main.parser = parser
        return main

    return decorate

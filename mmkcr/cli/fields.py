"""Arguments of a command from the fields of a frozen dataclass, and fields that several have.

A field's name, annotation and default become the argument's name, type and default;
:func:`argument` adds the text of the help. A command that hands a record of options on
(``FileOptions``) derives from it and names, in ``offers``, the fields that its arguments set; their
help is the docstring of the record. So an option is written once.
"""

import argparse
import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mmkcr.cli.command import (
    CFG_OPTIONS,
    TARGETS,
    TRUST,
    Parser,
    command,
    options_action,
    quiet_hosts,
)
from mmkcr.core.checks import image_shape
from mmkcr.deploy.latency_table import CONDITIONS
from mmkcr.deploy.runtimes import RUNTIMES
from mmkcr.safe_load import is_address

_WHICH = 'of --target-latency; default: that of the given table, else'


def argument(help: str, default: Any = None, *, positional: bool = False,
             group: str | None = None, **settings: Any) -> Any:
    """A field of a command's dataclass.

    Args:
        help (str): The help; ``%(default)s`` is the default.
        default (Any): Of an option. Defaults to None.
        positional (bool): Whether it has no ``--``. Defaults to False.
        group (str, optional): Options of one group exclude each other; one of a group whose name
            ends with ``!`` is required. Defaults to None.
        **settings: Of :meth:`argparse.ArgumentParser.add_argument`, for example ``choices``,
            ``metavar`` and ``nargs``; ``names`` are more spellings.
    """
    if isinstance(default, list):
        help = help.replace('%(default)s', ' '.join(map(str, default)))
    # no list: a dataclass refuses it, and the parser gives all values
    return dataclasses.field(default=None if isinstance(default, list) else default, metadata=dict(
        settings, help=help, positional=positional, group=group, default=default))


def describe_fields(record: type) -> dict[str, str]:
    """Descriptions of a dataclass's fields, of the ``Args:`` of its docstring and its bases'."""
    texts: dict[str, str] = {}
    for cls in reversed(record.__mro__):
        arguments = inspect.cleandoc(cls.__doc__ or '').partition('\nArgs:\n')[2]
        entries = re.findall(r'^ {4}(\w+) \(.*?\): (.*(?:\n {8}.*)*)', arguments, re.MULTILINE)
        texts.update((name, ' '.join(text.split())) for name, text in entries)
    return texts


def _plain_help(text: str) -> str:
    """A description without marks of a page; a sign that argparse reads is doubled."""
    text = re.sub(r':\w+:`~?(?:[\w.]+\.)?(\w+)`', r'`\1`', text)
    text = re.sub(r"``'?(.*?)'?``", r'`\1`', text)
    text = text.replace('Defaults to None:', 'Default:').replace(' Defaults to None.', '')
    return text.replace('%', '%%')


def _list_fields(job: type) -> list[tuple[str, dict[str, Any]]]:
    """The fields that a command offers, with their settings: of its record first, then its own.

    ``job.offers`` names the fields of a record of options (a base of the job), each with settings
    as of :func:`argument`. Help and default are the record's.
    """
    offers: dict[str, dict[str, Any]] = getattr(job, 'offers', {})
    fields = {field.name: field for field in dataclasses.fields(job)}
    texts = describe_fields(job)
    offered = []
    for name, settings in offers.items():
        default = fields[name].default
        offered.append((name, {
            'help': _plain_help(texts.get(name, '')), 'group': None, 'positional': False,
            'default': None if default is dataclasses.MISSING else default, **settings}))
    return offered + [(name, dict(field.metadata)) for name, field in fields.items()
                      if field.metadata and name not in offers]


def _add_arguments(parser: argparse.ArgumentParser, job: type) -> None:
    """Add the fields of a dataclass to a parser: of :func:`argument`, and its ``offers``."""
    hints, groups = typing.get_type_hints(job), {}
    for field_name, settings in _list_fields(job):
        name, group = field_name.replace('_', '-'), settings.pop('group')
        if group is not None and group not in groups:
            groups[group] = parser.add_mutually_exclusive_group(required=group.endswith('!'))
        place = groups.get(group, parser)
        if settings.pop('positional'):
            place.add_argument(field_name, **settings)
        else:
            names = (f'--{name}', *settings.pop('names', ()))
            place.add_argument(*names, dest=field_name,
                               **{**_of_type(hints[field_name]), **settings})


def _of_type(hint: Any) -> dict[str, Any]:
    """Settings of an argument by its annotation: a flag, one value of a type, or several."""
    if isinstance(hint, types.UnionType):
        hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    origin = typing.get_origin(hint) or hint
    if origin is bool:
        return dict(action='store_true')
    if origin is dict:
        return dict(nargs='+', action=options_action())
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
            del values['debug']  # which `command` has read
            if quiet:
                quiet_hosts()
            return run(job(**values))

        main.parser = parser
        return main

    return decorate


def check_file(path: str | None, what: str) -> None:
    """Refuse a local file that does not exist; None and addresses pass.

    Args:
        path (str | None): The file.
        what (str): Its content in the error, as ``'a checkpoint'``.

    Raises:
        FileNotFoundError: There is no such file.
    """
    if path is not None and not is_address(path) and not Path(path).expanduser().is_file():
        other = 'a folder: give a file in it' if Path(path).expanduser().is_dir() else 'none'
        raise FileNotFoundError(f'expected {what} at `{path}`, found {other}')


def require_checkpoint(job: Any) -> None:
    """Refuse a command about a config without its checkpoint, or with ``--pretrained``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Neither a file nor an address was given, or the option of another network.
    """
    if job.pretrained:
        raise ValueError('expected a name of timm or transformers with `--pretrained`, found the '
                         f'config `{job.config}`')
    if job.checkpoint is None:
        raise ValueError(f'expected a checkpoint of `{job.config}`, found none')
    check_file(job.checkpoint, 'a checkpoint')


def check_named(job: Any, names: Sequence[str]) -> None:
    """Refuse what only a network with a config has, and a checkpoint that does not exist.

    Args:
        job (Any): Arguments of a command about a network of timm or transformers.
        names (Sequence[str]): Fields that keep their defaults.

    Raises:
        FileNotFoundError: There is no such checkpoint.
        ValueError: Another value was given.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(job)}
    for name in names:
        if getattr(job, name) not in (None, defaults[name]):
            raise ValueError(f'expected a config of mmpretrain, mmdet or mmseg for '
                             f'`--{name.replace("_", "-")}`, found `{job.config}`')
    check_file(job.checkpoint, 'a checkpoint')


@dataclasses.dataclass(frozen=True)
class Configured:
    """A command that reads a config."""

    cfg_options: dict | None = argument(CFG_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Shaped:
    """A command about images of one size."""

    shape: list[int] | None = argument(
        'height and width of the image, or one number for both; default: that of the config',
        metavar='N')


def read_shape(job: Shaped) -> tuple[int, int, int] | None:
    """(3, H, W) of ``--shape``, if it was given."""
    return image_shape(job.shape) if job.shape else None


@dataclasses.dataclass(frozen=True)
class Trusting:
    """A command that reads checkpoints."""

    trust_checkpoint: bool = argument(TRUST, False)


@dataclasses.dataclass(frozen=True)
class Built(Configured, Shaped, Trusting):
    """A command that builds a network for images of one size."""


@dataclasses.dataclass(frozen=True)
class Timed(Built):
    """A command that cuts a checkpoint, perhaps to a target of time, by a measured table."""

    latency_table: str | None = argument(
        'of `mmkcr latency-table`, for --target-latency (default: where that writes it for this '
        'machine and the next three)', metavar='FILE')
    runtime: str | None = argument(f'{_WHICH} {CONDITIONS["runtime"]}', choices=RUNTIMES)
    threads: int | None = argument(f'{_WHICH} {CONDITIONS["threads"]}')
    batch: int | None = argument(f'{_WHICH} {CONDITIONS["batch"]}')
    force_table: bool = argument('take a table of another machine', False)


def target(cost: str, example: str, more: str = '', **settings: Any) -> Any:
    """A field for a target, the upper limit of a cost.

    Args:
        cost (str): Name of the cost: macs, params, bytes or latency.
        example (str): An amount in the help, as ``'12.6G'``.
        more (str): End of the help. Defaults to ``''``.
        **settings: Of :func:`argument`; the group is ``'target'`` by default.
    """
    return argument(f"most {TARGETS[f'target_{cost}'].noun}: {example}, 0.6 or 60%% of the dense "
                    f"model's{more}", metavar='TARGET', **{'group': 'target', **settings})


def find_target(job: Any) -> tuple[type, Any]:
    """The class of the cost that a target was given for, and the target or targets.

    Raises:
        ValueError: Options of a table of latencies without a target of time.
    """
    for name in Timed.__annotations__:  # its own
        if getattr(job, name) not in (None, False) and job.target_latency is None:
            raise ValueError(f'expected `--target-latency` with `--{name.replace("_", "-")}`, '
                             'found none')
    for name, cls in TARGETS.items():
        if getattr(job, name) is not None:
            return cls, getattr(job, name)
    return TARGETS['target_macs'], None


@dataclasses.dataclass(frozen=True)
class Running(Configured, Trusting):
    """A command that builds a Runner, with the flags that mmpretrain's two commands share."""

    work_dir: str | None = argument(
        'folder for logs and results (that of the config, else work_dirs/<config name>)')
    amp: bool = argument('automatic mixed precision', False)
    no_pin_memory: bool = argument('do not pin the memory of batches', False)
    launcher: str = argument('job launcher (%(default)s)', 'none',
                             choices=['none', 'pytorch', 'slurm', 'mpi'])
    local_rank: int = argument('set by older launchers (%(default)s)', 0, names=('--local_rank', ))

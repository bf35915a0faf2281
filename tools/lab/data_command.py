"""The command line of data that is written to disk: a folder, and options of a dataclass."""

from dataclasses import fields
from typing import Any

from mmkcr.cli.command import Parser


def data_parser(description: str, options: type, out: str) -> Parser:
    """A parser with ``--out`` and an option for every field.

    Args:
        description (str): What the command says of itself.
        options (type): The dataclass.
        out (str): Folder that is written by default.
    """
    parser = Parser(description)
    parser.add_argument('--out', default=out, metavar='DIR', help='folder to write (%(default)s)')
    for field in fields(options):
        kind = dict(action='store_true') if field.type is bool else dict(type=field.type)
        parser.add_argument('--' + field.name.replace('_', '-'), default=field.default,
                            help=f'see {options.__name__} (%(default)s)', **kind)
    return parser


def data_options(parsed: Any, options: type) -> tuple[str, Any]:
    """Folder and options from parsed arguments."""
    return parsed.out, options(**{field.name: getattr(parsed, field.name)
                                  for field in fields(options)})

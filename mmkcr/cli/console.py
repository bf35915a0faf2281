"""The command ``mmkcr``: every command is a module of this package.

``python tools/compress.py CONFIG ...`` in a clone runs ``mmkcr compress CONFIG ...``.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

from mmkcr.cli.command import COMMANDS, command
from mmkcr.core.checks import did_you_mean
from mmkcr.version import __version__

#: Options of ``mmkcr`` itself.
OPTIONS = ('--help', '--version', '--completion')

COMPLETION = """# bash completion: source <(mmkcr --completion)
_mmkcr() {{
    local word=${{COMP_WORDS[COMP_CWORD]}}
    if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "{words}" -- "$word")); fi
}}
complete -o default -F _mmkcr mmkcr"""


def usage() -> str:
    """The text of ``mmkcr --help``."""
    width = max(map(len, COMMANDS))
    lines = [f'  {name:<{width}}  {about}' for name, about in COMMANDS.items()]
    return '\n'.join([
        'usage: mmkcr COMMAND ...', '',
        'Vision transformers made smaller and faster inside OpenMMLab.', '',
        'commands:', *lines, '',
        'options:',
        '  --version     print the version',
        '  --completion  print a completion script for bash',
        '  --help        print this; `mmkcr COMMAND --help` has the options of a command', '',
        'Example:', '    mmkcr compress CONFIG CHECKPOINT --target-macs 60%'])


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Run the command that the first argument names."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ('-h', '--help'):
        print(usage())
    elif words[0] == '--version':
        print(f'mmkcr {__version__}')
    elif words[0] == '--completion':
        print(COMPLETION.format(words=' '.join([*COMMANDS, *OPTIONS])))
    elif words[0] not in COMMANDS:
        print(f'error: expected a command of {", ".join(COMMANDS)}, found `{words[0]}`'
              f'{did_you_mean(words[0], COMMANDS)} (see `mmkcr --help`)', file=sys.stderr)
        sys.exit(2)
    else:
        sys.argv = [f'mmkcr {words[0]}', *words[1:]]  # the name that argparse shows
        import_module(f'mmkcr.cli.{words[0].replace("-", "_")}').main(words[1:])

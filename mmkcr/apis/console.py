"""The command ``mmkcr``: the files of ``tools/`` under one name.

``mmkcr compress CONFIG ...`` and ``python tools/compress.py CONFIG ...`` are the same function with
the same arguments. The first needs no clone.
"""

import sys
from typing import NoReturn, Optional, Sequence

from mmkcr.apis.cli import COMMANDS, command
from mmkcr.apis.shipped import load_tool
from mmkcr.core.words import did_you_mean
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
    lines = [f'  {name:<{width}}  {entry.about}' for name, entry in COMMANDS.items()]
    return '\n'.join([
        'usage: mmkcr COMMAND ...', '',
        'Vision transformers made smaller and faster inside OpenMMLab.', '',
        'commands:', *lines, '',
        'options:',
        '  --version     print the version',
        '  --completion  print a completion script for bash',
        '  --help        print this; `mmkcr COMMAND --help` has the options of a command', '',
        'Example:', '    mmkcr compress CONFIG CHECKPOINT --target-macs 60%'])


def unknown(name: str) -> NoReturn:
    """Refuse a word that is not a command, in one line, with exit status 2."""
    print(f'error: expected a command of {", ".join(COMMANDS)}, found `{name}`'
          f'{did_you_mean(name, COMMANDS)} (see `mmkcr --help`)', file=sys.stderr)
    sys.exit(2)


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command that the first argument names.

    Args:
        argv (Sequence[str], optional): Defaults to None: the arguments of the process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ('-h', '--help'):
        print(usage())
    elif words[0] == '--version':
        print(f'mmkcr {__version__}')
    elif words[0] == '--completion':
        print(COMPLETION.format(words=' '.join([*COMMANDS, *OPTIONS])))
    elif words[0] not in COMMANDS:
        unknown(words[0])
    else:
        sys.argv = [f'mmkcr {words[0]}', *words[1:]]  # the name that argparse shows
        load_tool(COMMANDS[words[0]].tool).main(words[1:])

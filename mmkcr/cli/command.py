"""Behaviour that all commands share: arguments that are checked, one sentence for a mistake."""

import argparse
import functools
import logging
import math
import os
import re
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NoReturn

from mmkcr.core import COUNTED, LatencyModel
from mmkcr.core.checks import check_device, check_place, did_you_mean, image_shape
from mmkcr.core.machine import NO_MEMORY
from mmkcr.safe_load import trust_checkpoints

#: Libraries whose assertions say what is wrong with a config or a checkpoint.
_HOSTS = ('mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg')
#: How PyTorch reports that a file cannot be written whole.
_NO_ROOM = re.compile('PytorchStreamWriter failed|inline_container.*unexpected pos')
#: Words that may follow ``mmkcr`` on the command line; each is a module of this package.
COMMANDS = {
    'compress': 'make a trained model smaller in closed form, without training',
    'distil': 'teach a compressed model what its dense one does, without labels',
    'frontier': 'measure what makes a network faster, and recommend',
    'init': 'write the few lines beside your own config',
    'search': 'train gates and weights: which units a model can do without',
    'slim': 'cut a searched model under a budget',
    'train': 'train any config of mmpretrain, mmdet or mmseg',
    'test': 'evaluate a checkpoint',
    'export': 'write an ONNX file and compare it with PyTorch',
    'flops': 'count MACs and parameters, attention included',
    'latency': 'time a dense and a slim model in turns',
    'latency-table': 'measure what a budget in ms needs',
    'publish': 'one file with weights, structure and metadata',
    'zoo': 'list the models of this package',
}
#: Lower limits of numbers, by their argument's name, which is the same in every command.
LEAST = dict(threads=1, batch=1, batch_size=1, images=1, shown=1, repeats=0, warmup=0, rounds=1,
             pairs=1, divisor=1, jobs=1, folds=2, count=1, interval=1, landmarks=1, tokens=1,
             finetune=1, seed=0, seeds=0, grid=1, image=1, head=0, replace=0, query=0,
             score_thr=0, rho=0, tolerance=0, wait_time=0, fraction=1e-6, budgets=1e-6,
             targets=1e-6)
#: Upper limits: of shares, and where PyTorch would end the process.
MOST = dict(query=1, score_thr=1, fraction=1, budgets=1, targets=1, threads=4096, jobs=4096,
            rho=1e6)
#: Cost class of every target argument.
TARGETS = {f'target_{cls.name}': cls for cls in (*COUNTED.values(), LatencyModel)}


class Parser(argparse.ArgumentParser):
    """An argument parser with ``--debug`` whose errors are one line.

    The first line of a command's docstring is its description, the rest follows the options.
    """

    def __init__(self, doc: str) -> None:
        first, _, rest = doc.strip().partition('\n')
        super().__init__(description=first, epilog=rest.strip('\n'), allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument('--debug', action='store_true',
                          help='show the traceback of an error (also: MMKCR_DEBUG=1)')

    def parse_args(self, *args: Any, **kwargs: Any) -> argparse.Namespace:
        """Parse and check; ``--trust-checkpoint`` takes effect for the process.

        Raises:
            ValueError: A word without ``=`` after ``--cfg-options``, swapped files, or a number,
                device, target or output place that is impossible.
        """
        given = sys.argv[1:] if not args or args[0] is None else args[0]
        self._check_options(given)
        try:
            parsed = super().parse_args(*args, **kwargs)
        except ValueError as error:  # of `DictAction` alone
            raise ValueError('expected `key=value` after `--cfg-options` and the like, found '
                             f'another word ({error})') from error
        self._check_values(parsed)
        trust_checkpoints(getattr(parsed, 'trust_checkpoint', False))
        return parsed

    def _check_options(self, words: Sequence[str]) -> None:
        """Refuse an option that is unknown before one that is missing."""
        for word in words:
            name = word.partition('=')[0]
            if re.fullmatch(r'-[\d.]+ *[^\d.]+', word):  # argparse takes numbers alone
                self.error(f'expected an amount above 0, found `{word}`')
            if re.fullmatch(r'--[a-z].*', name) and name not in self._option_string_actions:
                self.error(f'expected an option of this command, found `{name}`'
                           f'{did_you_mean(name, self._option_string_actions)}')

    def _check_values(self, args: argparse.Namespace) -> None:
        """Refuse swapped files, and impossible numbers, devices, targets and output places.

        ``metavar='FILE'`` distinguishes an output file from a folder.
        """
        config, checkpoint = (str(getattr(args, name, '')) for name in ('config', 'checkpoint'))
        if config.endswith('.pth'):
            instead = f'the config `{checkpoint}` in its place: they are swapped' \
                if checkpoint.endswith('.py') else 'no config'
            raise ValueError(f'expected the config before the checkpoint `{config}`, found '
                             f'{instead}')
        for action in filter(lambda action: action.option_strings, self._actions):
            name, flag = action.dest, max(action.option_strings, key=len)
            given = getattr(args, name, None)
            values = given if isinstance(given, (list, tuple)) else [given]
            if None in values:  # not given
                continue
            if name in LEAST:
                least, most = LEAST[name], MOST.get(name, math.inf)
                for value in values:
                    if isinstance(value, (int, float)) and not least <= value <= most:
                        wanted = f'most {most}' if value > most else f'least {least}'
                        raise ValueError(f'expected `{flag}` of at {wanted}, found {value}')
            elif name in TARGETS:
                for value in values:
                    # parsed only: 2**62 stands for the dense model's cost, which is not known yet
                    TARGETS[name].read_target(value, 2**62)
            elif name == 'device':
                check_device(given)
            elif name == 'shape':
                image_shape(values)
            elif name in ('out', 'work_dir', 'show_dir'):
                check_place(given, flag, action.metavar == 'FILE')

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = list(map(str, action.choices))
            raise argparse.ArgumentError(action, f'expected one of {", ".join(choices)}, found '
                                         f'`{value}`{did_you_mean(str(value), choices)}')

    def format_help(self) -> str:
        """The help; an option without a default says so."""
        for action in self._actions:
            if (action.option_strings and action.nargs != 0 and action.default is None
                    and not action.required and not re.search(r'\(|\b[Dd]efault', action.help)):
                action.help += ' (none)'
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with status 2."""
        self.exit(2, f'error: {message} (see `{self.prog} --help`)\n')


CFG_OPTIONS = 'entries of the config to overwrite: key=value, lists as key="[a,b]" or key=a,b'
TRUST = ('let checkpoints run code when they are read, as old ones may need: only for files of '
         'somebody whom you trust')


def options_action() -> Any:
    """The action of argparse for words ``key=value``, which MMEngine reads if it is installed."""
    if find_spec('mmengine') is None:
        return 'store'
    from mmengine.config import DictAction
    return DictAction


def add_options_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that overwrites entries of the config, as the hosts' commands have it."""
    parser.add_argument('--cfg-options', nargs='+', action=options_action(), help=CFG_OPTIONS)


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """Add the opt-out of reading checkpoints without running code."""
    parser.add_argument('--trust-checkpoint', action='store_true', help=TRUST)


def quiet_hosts() -> None:
    """Keep the host libraries' notices out of a command's output."""
    if find_spec('mmengine') is not None:
        from mmengine.logging import MMLogger
        MMLogger.get_current_instance().setLevel(logging.ERROR)
    warnings.filterwarnings('ignore', category=UserWarning)


def sentence(error: BaseException) -> str:
    """An error's message in one line."""
    if isinstance(error, OSError) and error.errno is not None:
        if isinstance(error, (FileExistsError, NotADirectoryError)):
            return f'expected a folder, found a file at or above {error.filename}'
        return f'expected to read or write `{error.filename}`, found: {error.strerror}' \
            if error.filename else str(error.strerror)
    first = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
    if _NO_ROOM.search(str(error)):
        return f'expected room on the disk to write to, found none ({first})'
    if (isinstance(error, MemoryError) or NO_MEMORY.search(str(error))) and \
            not str(error).startswith('expected'):
        return (f'expected sizes that fit into memory, found more ({first}); smaller batches or '
                'smaller images need less')
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return ' '.join(str(text).split()) or type(error).__name__


def _is_users(error: Exception) -> bool:
    """Whether the user can mend the cause: other errors are shown with their traceback."""
    if isinstance(error, AssertionError):  # with a message, of a host: how these refuse settings
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        return bool(str(error)) and frame.f_globals.get(
            '__name__', '').partition('.')[0] in _HOSTS
    if isinstance(error, RuntimeError):
        return bool(NO_MEMORY.search(str(error)) or _NO_ROOM.search(str(error)))
    return isinstance(error, (ValueError, TypeError, KeyError, OSError, ImportError, MemoryError))


def reader_is_gone() -> bool:
    """Whether standard output has lost its reader, as after ``| head``."""
    poll = select.poll()
    # POLLERR needs no request: it reports a pipe without a reader
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def command(main: Callable[[Sequence[str] | None], Any]) -> Callable:
    """Decorate ``main(argv=None)``: a user's mistake prints one line and exits with status 1.

    An interrupt of a command prints one word and exits with status 130. A character that the
    terminal's encoding lacks is printed as ``?``. With ``--debug`` or ``MMKCR_DEBUG=1`` the error
    is raised, with its traceback.
    """

    @functools.wraps(main)
    def guarded(argv: Sequence[str] | None = None) -> Any:
        """Run the command; an error of its user becomes one line."""
        given = sys.argv[1:] if argv is None else argv
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, 'reconfigure'):  # else it is no file's, as in a notebook
                stream.reconfigure(errors='replace')
        debug = '--debug' in given or os.environ.get('MMKCR_DEBUG', '0') not in ('', '0')
        try:
            try:
                return main(argv)
            finally:
                sys.stdout.flush()  # a closed pipe is noticed here instead of at exit
        except BrokenPipeError:
            if not reader_is_gone():
                raise
            # the interpreter flushes once more at exit, which must not fail
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(128 + signal.SIGPIPE)  # as other commands end before `| head`
        except KeyboardInterrupt:
            if debug or argv is not None:  # then it is the caller's
                raise
            print('interrupted', file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
        except Exception as error:
            if debug or not _is_users(error):
                raise
            print(f'error: {sentence(error)}', file=sys.stderr)
            sys.exit(1)

    return guarded

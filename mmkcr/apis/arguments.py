"""Arguments that commands share, checked before any work begins."""

import tempfile
from argparse import Action, Namespace
from pathlib import Path
from typing import Any, Iterable, List, Sequence, Tuple

import torch

from mmkcr.core import COUNTED, LatencyModel

#: Lower limits of numbers, by their argument's name, which is the same in every command.
LEAST = dict(threads=1, batch=1, batch_size=1, images=1, shown=1, repeats=0, warmup=0, rounds=1,
             pairs=1, divisor=1, jobs=1, folds=2, count=1, interval=1, landmarks=1, tokens=1,
             finetune=1, seed=0, seeds=0, grid=1, image=1, head=0, replace=0, query=0, score_thr=0,
            rho=0, memory=0, tolerance=0, wait_time=0, fraction=1e-6, budgets=1e-6,
             targets=1e-6)
#: Upper limits of some; no machine handles more.
MOST = dict(threads=4096, jobs=4096, batch=2**20, batch_size=2**20, query=1, score_thr=1,
            fraction=1, budgets=1, targets=1, rho=1e6, memory=1e6, tolerance=1e6, wait_time=1e6)
#: Maximum number of pixels of an image that a model is built, counted or timed for.
MOST_PIXELS = 2**26
#: Cost class of every target argument.
TARGETS = {f'target_{cls.name}': cls for cls in (*COUNTED.values(), LatencyModel)}
_FOLDERS, _FILES = ('out', 'work_dir', 'show_dir'), ('FILE', )


def add_targets(group: Any, most: str, several: bool = False) -> None:
    """Add ``--target-macs`` and the targets of other costs.

    Args:
        group (ArgumentParser): A group of which one argument may be given.
        most (str): Help of the first, after the examples.
        several (bool): Whether a cost may have several targets. Defaults to False.
    """
    for cls, example in zip(TARGETS.values(), ('12.6G', '12M', '40MB', '12ms')):
        more = dict(macs=most, latency=', of a table that was measured',
                    bytes=' (of the state_dict)').get(cls.name, '')
        group.add_argument(f'--target-{cls.name}', metavar='TARGET',
                           nargs='+' if several else None,
                           help=f'most {cls.noun}: {example}, 0.6 or 60%% of the dense '
                           f"model's{more}")


def chosen_target(args: Namespace) -> Tuple[str, Any]:
    """The cost that a target was given for (see :func:`mmkcr.apis.slim`), and the target(s).

    Args:
        args (Namespace): Arguments of :func:`add_targets` and
            :func:`~mmkcr.apis.latency_table.add_table_arguments`.

    Raises:
        ValueError: Arguments about the table of a target of time, without this target.
    """
    for name in ('latency_table', 'runtime', 'threads', 'batch', 'force_table'):
        if getattr(args, name) not in (None, False) and args.target_latency is None:
            raise ValueError(f'expected `--target-latency` with `--{name.replace("_", "-")}`, '
                             'found none')
    for name, cls in TARGETS.items():
        if getattr(args, name) is not None:
            return cls.name if cls.name in COUNTED else 'macs', getattr(args, name)
    return 'macs', None


def check_arguments(args: Namespace, actions: Sequence[Action]) -> None:
    """Refuse impossible numbers, devices, targets and output places.

    Args:
        args (Namespace): Parsed.
        actions (Sequence[Action]): Actions of the parser; ``metavar='FILE'`` distinguishes an
            output file from a folder.

    Raises:
        ValueError: One of these is impossible.
        OSError: Nothing can be written at a place.
    """
    flags = {action.dest: max(action.option_strings, key=len) for action in actions
             if action.option_strings}
    metavars = {action.dest: action.metavar for action in actions}
    _check_order(args)
    for name, flag in flags.items():
        values = _values(getattr(args, name, None))
        if name in LEAST:
            _check_numbers(values, flag, LEAST[name], MOST.get(name))
        elif name == 'device' and values:
            check_device(values[0])
        elif name in TARGETS:
            for value in values:
                # parsed only: 2**62 stands for the dense model's cost, which is not known yet
                TARGETS[name].read_target(value, 2**62)
        elif name == 'shape' and values:
            image_shape(values)
        elif name in _FOLDERS and values:
            check_place(values[0], flag, metavars[name] in _FILES)


def _check_order(args: Namespace) -> None:
    """Refuse a checkpoint in the config's place, with the config in the checkpoint's."""
    config, checkpoint = (str(getattr(args, name, '')) for name in ('config', 'checkpoint'))
    if config.endswith('.pth'):
        found = f'the config `{checkpoint}` in its place: they are swapped' \
            if checkpoint.endswith('.py') else 'no config'
        raise ValueError(f'expected the config before the checkpoint `{config}`, found {found}')


def _values(value: Any) -> List[Any]:
    found = list(value) if isinstance(value, (list, tuple)) else [value]
    return [item for item in found if item is not None]


def _check_numbers(values: Iterable[Any], flag: str, least: int, most: Any) -> None:
    for value in values:
        if isinstance(value, (int, float)) and not least <= value <= (most or value):
            wanted = f'of at most {most}' if most and value > most else f'of at least {least}'
            raise ValueError(f'expected `{flag}` {wanted}, found {value}')


def image_shape(shape: Sequence[int]) -> Tuple[int, int, int]:
    """(3, H, W) of a command's ``--shape``, which is H and W or one number for both.

    Raises:
        ValueError: Not one or two positive numbers, or more pixels than any model takes.
    """
    if len(shape) not in (1, 2) or min(shape) < 1:
        raise ValueError('expected `--shape` of one or two positive numbers, found '
                         f'{" ".join(map(str, shape))}')
    if shape[0] * shape[-1] > MOST_PIXELS:
        raise ValueError(f'expected `--shape` of {MOST_PIXELS} pixels at most, found '
                         f'{shape[0]} x {shape[-1]}')
    return 3, shape[0], shape[-1]


def check_device(name: str) -> None:
    """Refuse a device that does not exist.

    Args:
        name (str): Such as ``'cpu'`` or ``'cuda:1'``.

    Raises:
        ValueError: It is not the name of a device, or this machine does not have it.
    """
    try:
        device = torch.device(name)
        if device.type == 'cuda' and not torch.cuda.is_available():
            raise ValueError(f'expected a CUDA device for `--device {name}`, found none')
        # some backends fail only when they are used
        torch.empty(1, device=device).cpu()
    except (RuntimeError, NotImplementedError) as error:
        text = str(error).strip().splitlines() or ['']
        raise ValueError(f'expected a device of this machine such as `cpu` or `cuda`, found '
                         f'`--device {name}` ({text[0]:.120})') from error


def check_place(path: Any, flag: str, file: bool = False) -> None:
    """Refuse a place where nothing can be written; nothing is left behind.

    Args:
        path (str | Path): A folder, or with ``file`` a file; it need not exist.
        flag (str): Flag of the command, for the message.
        file (bool): Whether a file is to be written. Defaults to False.

    Raises:
        ValueError: A file is where a folder has to be, or a folder where the file has to be.
        OSError: The system says that nothing can be written there.
    """
    path = Path(path).expanduser()
    if file and path.is_dir():
        raise ValueError(f'expected a file to write at `{flag} {path}`, found a folder')
    folder = path.parent if file else path
    # the nearest folder that exists
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise ValueError(f'expected a place to write for `{flag} {path}`, found a file at '
                         f'`{folder}`')
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b'0' * 4096)  # an empty file can be made even on a full disk
            probe.flush()
    except OSError as error:
        raise OSError(error.errno, f'expected a place to write for `{flag} {path}`, found none: '
                      f'{error.strerror}') from error

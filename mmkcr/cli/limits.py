"""Arguments that commands share, checked before any work begins."""

import math
from argparse import Action, Namespace
from collections.abc import Sequence

from mmkcr.core import COUNTED, LatencyModel
from mmkcr.core.checks import check_device, check_place, image_shape

#: Lower limits of numbers, by their argument's name, which is the same in every command.
LEAST = dict(threads=1, batch=1, batch_size=1, images=1, shown=1, repeats=0, warmup=0, rounds=1,
             pairs=1, divisor=1, jobs=1, folds=2, count=1, interval=1, landmarks=1, tokens=1,
             finetune=1, by_module=1, seed=0, seeds=0, grid=1, image=1, head=0, replace=0, query=0,
             score_thr=0, rho=0, memory=0, tolerance=0, wait_time=0, fraction=1e-6, budgets=1e-6,
             targets=1e-6)
#: Upper limits: of shares, and where PyTorch would end the process.
MOST = dict(query=1, score_thr=1, fraction=1, budgets=1, targets=1, threads=4096, jobs=4096,
            rho=1e6, memory=1e6)
#: Cost class of every target argument.
TARGETS = {f'target_{cls.name}': cls for cls in (*COUNTED.values(), LatencyModel)}


def check_arguments(args: Namespace, actions: Sequence[Action]) -> None:
    """Refuse impossible numbers, devices, targets and output places.

    ``metavar='FILE'`` distinguishes an output file from a folder.
    """
    _check_order(args)
    for action in actions:
        name, flag = action.dest, max(action.option_strings, key=len, default='')
        given = getattr(args, name, None) if flag else None
        values = [value for value in (given if isinstance(given, (list, tuple)) else [given])
                  if value is not None]
        if name in LEAST:
            least, most = LEAST[name], MOST.get(name, math.inf)
            for value in values:
                if isinstance(value, (int, float)) and not least <= value <= most:
                    wanted = f'most {most}' if value > most else f'least {least}'
                    raise ValueError(f'expected `{flag}` of at {wanted}, found {value}')
        elif name == 'device' and values:
            check_device(values[0])
        elif name in TARGETS:
            for value in values:
                # parsed only: 2**62 stands for the dense model's cost, which is not known yet
                TARGETS[name].read_target(value, 2**62)
        elif name == 'shape' and values:
            image_shape(values)
        elif name in ('out', 'work_dir', 'show_dir') and values:
            check_place(values[0], flag, action.metavar == 'FILE')


def _check_order(args: Namespace) -> None:
    """Refuse a checkpoint in the config's place, with the config in the checkpoint's."""
    config, checkpoint = (str(getattr(args, name, '')) for name in ('config', 'checkpoint'))
    if config.endswith('.pth'):
        instead = f'the config `{checkpoint}` in its place: they are swapped' \
            if checkpoint.endswith('.py') else 'no config'
        raise ValueError(f'expected the config before the checkpoint `{config}`, found {instead}')

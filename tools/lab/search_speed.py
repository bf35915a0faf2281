"""Does a search that slices as it goes get faster? From a run's own log."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .figures import saved_figure


class Phase(NamedTuple):
    """Logged iterations between two slicing events.

    Args:
        first (int): Iteration, from 1.
        last (int): Iteration.
        macs (float): G that the tensors there take for one image.
        seconds (float): Median time of a step.
        speed (float): Time of the first phase over this one's.
        ideal (float): MACs of the first phase over this one's.
    """

    first: int
    last: int
    macs: float
    seconds: float
    speed: float
    ideal: float


def read_scalars(path: str | Path) -> list[dict[str, float]]:
    """Training lines of an MMEngine ``scalars.json`` that have MACs and a time.

    Raises:
        FileNotFoundError: No such file.
        ValueError: It has no such lines.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'expected the log of a search at `{path}`, found none')
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    found = [line for line in lines if 'macs_present' in line and 'time' in line]
    if not found:
        raise ValueError(f'expected logged `macs_present` and `time` in `{path}`, found '
                         f'{len(lines)} lines without')
    return found


def search_phases(lines: Sequence[dict[str, float]]) -> list[Phase]:
    """Step time by what is left of the network.

    Args:
        lines (Sequence[dict]): Of :func:`read_scalars`.
    """
    groups: list[list[dict[str, float]]] = []
    for line in lines:
        if not groups or groups[-1][0]['macs_present'] != line['macs_present']:
            groups.append([])
        groups[-1].append(line)
    times = [float(np.median([line['time'] for line in group])) for group in groups]
    macs = [group[0]['macs_present'] for group in groups]
    return [Phase(int(group[0].get('step', 0)), int(group[-1].get('step', 0)), mac, time,
                  times[0] / time, macs[0] / mac)
            for group, mac, time in zip(groups, macs, times)]


def plot_search_speed(lines: Sequence[dict[str, float]], path: str | Path) -> None:
    """MACs that are there and time of a step, over iterations, as shares of the first phase's.

    Thick: medians between slicing events; thin: the logged times.

    Args:
        lines (Sequence[dict]): Of :func:`read_scalars`.
        path (str | Path): Figure to write.
    """
    steps = [line.get('step', number) for number, line in enumerate(lines)]
    phases = search_phases(lines)
    ends = [phase.first for phase in phases] + [phases[-1].last]
    with saved_figure(path, (7, 4)) as (_, axes):
        axes.plot(steps, [line['time'] / phases[0].seconds for line in lines], color='C1',
                  linewidth=0.8, alpha=0.4)
        for values, label in (([1 / phase.ideal for phase in phases], 'MACs'),
                              ([1 / phase.speed for phase in phases], 'time of a step')):
            axes.stairs(values, ends, baseline=None, linewidth=2, label=label)
        axes.set(xlabel='iteration', ylabel='share of the start',
                 ylim=(0, 1.3 * max(1., *(1 / phase.speed for phase in phases))))
        axes.grid(alpha=0.3)
        axes.legend(fontsize='small')

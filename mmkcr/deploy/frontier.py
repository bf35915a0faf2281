"""Ways to make a network faster, alone and in pairs: their rows, and the best of them in words."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from .file_bench import Quality

#: Names of runtimes in sentences and headings.
NAMES = dict(onnxruntime='ONNX Runtime', openvino='OpenVINO')


class Lever(NamedTuple):
    """One way to make a network faster."""

    name: str  # as tables show it, such as '60% of the MACs'
    kind: str  # 'cut', 'input', 'int8' or 'half'
    change: Callable[[nn.Module], nn.Module] | None = None  # None: it changes the file


def combine(levers: Sequence[Lever]) -> list[tuple[Lever, ...]]:
    """The dense network, each lever alone, each pair of two kinds."""
    pairs = [pair for pair in itertools.combinations(levers, 2) if pair[0].kind != pair[1].kind]
    return [(), *((lever, ) for lever in levers), *pairs]


@dataclass(frozen=True)
class Row:
    """Measured numbers of one file; where it failed, ``note`` says why and numbers are None.

    Args:
        levers (str): Names of its levers; ``'dense'`` without any.
        runtime (str): One of :data:`NAMES`.
        threads (int): Threads of the processor.
        int8 (bool): Whether int8 is among the levers.
        ratio (float, optional): Time of an image over the dense network's, the median of pairs.
        quartiles (tuple[float, float], optional): First and third quartile of these ratios.
        ms (float, optional): Time of an image in milliseconds: the ratio times the dense network's
            median.
        bytes (int): Size of the file.
        agreement (float, optional): With the dense network, at most 1, see
            :data:`~mmkcr.deploy.file_bench.AGREEMENTS`.
        metric (float, optional): On the labelled test set, the greater the better.
        metric_name (str): Name of the metric.
        note (str): Why it failed, or the blocks that compute in fp32.
        file (str): The network, ready to run; empty where another row beats it.
    """

    levers: str
    runtime: str
    threads: int
    int8: bool = False
    ratio: float | None = None
    quartiles: tuple[float, float] | None = None
    ms: float | None = None
    bytes: int = 0
    agreement: float | None = None
    metric: float | None = None
    metric_name: str = ''
    note: str = ''
    file: str = ''

    @property
    def quality(self) -> float | None:
        """The metric, or without a labelled test set the agreement."""
        return self.agreement if self.metric is None else self.metric


def drop_failed(rows: Iterable[Row]) -> list[Row]:
    """Rows that did not fail."""
    return [row for row in rows if row.ratio is not None]


def find_better_row(row: Row, rows: Iterable[Row]) -> Row | None:
    """The best row of the same runtime and threads that is no worse in both and better in one."""
    better = [other for other in drop_failed(rows)
              if (other.runtime, other.threads) == (row.runtime, row.threads)
              and other.ratio <= row.ratio and other.quality >= row.quality
              and (other.ratio, other.quality) != (row.ratio, row.quality)]
    return max(better, key=lambda other: (other.quality, -other.ratio), default=None)


def drop_beaten(rows: Sequence[Row]) -> list[Row]:
    """Rows that no other beats, the fastest first."""
    best = [row for row in drop_failed(rows) if find_better_row(row, rows) is None]
    return sorted(best, key=lambda row: row.ratio)


def choose(rows: Iterable[Row], keep: float, int8: bool = True) -> Row | None:
    """The fastest row, in milliseconds, that keeps enough of the dense network's quality.

    Args:
        rows (Iterable[Row]): Of any runtimes, with their dense networks.
        keep (float): Share of the dense network's quality that is enough, 0 to 1.
        int8 (bool): Whether rows with int8 may be chosen. Defaults to True.
    """
    rows = drop_failed(rows)
    dense = {(row.runtime, row.threads): row.quality for row in rows if row.levers == 'dense'}
    good = [row for row in rows if (int8 or not row.int8)
            and row.quality >= keep * dense[row.runtime, row.threads]]
    return min(good, key=lambda row: (row.ms, -row.quality), default=None)


def recommend(rows: Sequence[Row], keep: float, quality: Quality) -> str:
    """Recommend a row in words: a line for each number of threads.

    Args:
        rows (Sequence[Row]): All rows.
        keep (float): Share of the dense network's quality that must stay, 0 to 1.
        quality (Quality): How :attr:`Row.quality` is shown.
    """
    def tell(row: Row) -> str:
        time = '' if row.levers == 'dense' else \
            f'{row.ratio:.2f} of the time of the dense network there, '
        return (f'{row.levers} in {NAMES[row.runtime]}: {time}{row.ms:.4g} ms an image, '
                f'{quality.sentence.format(row.quality)}')

    lines = []
    for threads in dict.fromkeys(row.threads for row in rows):
        there = [row for row in rows if row.threads == threads]
        begin = f'On {threads} thread{"s" * (threads > 1)}, to keep {keep:.0%} of the quality: '
        dense = min(row.quality for row in there if row.levers == 'dense')
        if dense <= 0:  # a share of it is no less, so that all would be good, or nothing
            lines.append(f'{begin}nothing to recommend, as the dense network has '
                         f'{quality.sentence.format(dense)}.')
            continue
        best = choose(there, keep)
        line = f'{begin}{tell(best)}.'
        if best.int8:
            line += f' Without int8: {tell(choose(there, keep, int8=False))}.'
        faster = [row for row in drop_beaten(there) if row.levers != 'dense' and row.ratio < 1]
        if best.levers == 'dense':
            line += ' Nothing that is faster keeps so much.'
            if faster:
                line += f' Nearest is {tell(max(faster, key=lambda row: row.quality))}.'
        lines.append(line)
    return '\n'.join(lines)

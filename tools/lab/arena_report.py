"""The arena's table, verdicts and plot, from the records of what is finished."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmkcr.core import atomic_write
from mmkcr.visualization import format_table
from .arena_methods import METHODS
from .figures import saved_figure
from .machine import machine_info
from .palette import SERIES
from .stages import RECORD

#: What differences are to, and what a method has to be above to lead.
RANDOM, REFIT = 'random', 'refit'
METRIC = 'accuracy/top1'
#: Their names in tables.
NAMES = {METRIC: 'top-1 (%)', 'mIoU': 'mIoU (%)', 'coco/bbox_mAP': 'box AP (%)'}
#: Of metrics that are no percentages.
_SCALE = {'coco/bbox_mAP': 100}
#: Fewest pairs of a verdict; with two or three, one of many intervals misses 0 by chance.
LEAST_PAIRS = 5


class Interval(NamedTuple):
    """Mean of paired differences with its 95 % interval.

    Args:
        mean (float): Of the differences.
        half (float, optional): Half of the interval's width; None with fewer than two pairs.
        pairs (int): Their number.
    """

    mean: float
    half: float | None
    pairs: int

    @property
    def above(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.half is not None and self.mean - self.half > 0

    @property
    def below(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.half is not None and self.mean + self.half < 0

    def __format__(self, spec: str) -> str:
        half = '' if self.half is None else f' ± {self.half:{spec or ".2f"}}'
        return f'{self.mean:+{spec or ".2f"}}{half}'


def paired_interval(values: Mapping[int, float],
                    others: Mapping[int, float]) -> Interval | None:
    """Interval of the difference of two methods over the seeds that both have.

    Args:
        values (dict[int, float]): By seed.
        others (dict[int, float]): Those of the other method.

    Returns:
        Interval: By Student's t distribution; None where no seed is in both.
    """
    from scipy.stats import t
    seeds = sorted(set(values) & set(others))
    if not seeds:
        return None
    differences = [values[seed] - others[seed] for seed in seeds]
    count, mean = len(seeds), statistics.fmean(differences)
    if count < 2:
        return Interval(mean, None, count)
    error = statistics.stdev(differences) / math.sqrt(count)
    return Interval(mean, float(t.ppf(0.975, count - 1)) * error, count)


def read_rows(folder: Path, budgets: Sequence[float], methods: Sequence[str],
              seeds: Sequence[int], metric: str = METRIC) -> list[dict[str, Any]]:
    """Numbers by budget and method of the runs that are finished.

    Args:
        folder (Path): Of the network, with a folder a seed.
        budgets (Sequence[float]): Shares of the dense MACs.
        methods (Sequence[str]): Of :data:`~lab.arena_methods.METHODS`.
        seeds (Sequence[int]): Of the runs.
        metric (str): Key of :data:`NAMES`. Defaults to top-1.

    Returns:
        list[dict]: ``budget`` (1 for the dense network), ``method``, ``after`` and ``before``
        (the metric by seed), ``macs`` by seed (of the backbone where that was measured),
        ``masks`` (by seed, see :func:`~lab.measures.mask_measure`) and ``kc`` (by seed, of the
        training features after retraining; of classifiers).
    """
    rows = [_row(folder, 'dense', 1., '', seeds, metric)]
    for budget in budgets:
        rows += [_row(folder, name, budget, f'{round(100 * budget)}-', seeds, metric)
                 for name in methods]
    return [row for row in rows if row['after'] or row['before']]


def _row(folder: Path, name: str, budget: float, prefix: str,
         seeds: Sequence[int], metric: str) -> dict[str, Any]:
    row: dict[str, Any] = dict(budget=budget, method=name, after={}, before={}, macs={}, masks={},
                               kc={})
    scale = _SCALE.get(metric, 1)
    for seed in seeds:
        for key, end in (('after', ''), ('before', '-before')):
            found = _result(folder / f'seed{seed}' / f'evaluate-{prefix}{name}{end}' / RECORD)
            if found:
                # a detector that finds nothing has no AP
                row[key][seed] = found['metrics'].get(metric, 0.) * scale
                if key == 'after':
                    row['macs'][seed] = found.get('backbone', found)['macs']
                    if 'kernel' in found:
                        row['kc'][seed] = found['kernel']['kc']
                    if found.get('masks'):
                        row['masks'][seed] = dict(found['masks'],
                                                  forced=found['masks'][f'{metric}_open'] * scale)
    return row


def _result(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()).get('result') if path.is_file() else None


def summarise(rows: Sequence[Mapping[str, Any]],
              others: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Means, paired differences and verdicts of the rows of :func:`read_rows`.

    A method *pays* if the interval of its difference to random units is above 0, and *leads* if
    that to the closed-form refit with the same fine-tuning is; with fewer than :data:`LEAST_PAIRS`
    seeds there is no verdict.

    Args:
        rows (Sequence[dict]): Of one network.
        others (Sequence[str]): Further methods that differences after retraining are to, or
            ``'dense'``. Defaults to none.

    Returns:
        list[dict]: ``budget``, ``method``, ``label``, ``macs`` (mean share of the dense network),
        ``seeds``, mean and standard deviation of ``before`` and ``after``, and of both the
        intervals to random and refit, and the verdict; ``to`` (the intervals to ``others``, by
        their names); ``kc`` and ``kc_std``, and ``kc_of_term``,
        the interval to the same method without its regulariser; of methods with masks ``masks``,
        the mean shares of ``open`` entries and of ``always`` open channels in percent, and
        ``masks_bring``, the interval of ``after`` to the same networks with all masks forced open.
    """
    dense = next((row for row in rows if row['method'] == 'dense'), None)
    whole = statistics.fmean(dense['macs'].values()) if dense and dense['macs'] else None
    summary = []
    for row in rows:
        same = {other['method']: other for other in rows if other['budget'] == row['budget']}
        macs = statistics.fmean(row['macs'].values()) if row['macs'] else None
        entry: dict[str, Any] = dict(
            budget=row['budget'], method=row['method'], seeds=sorted(row['after']),
            label=label(row['method']),
            macs=macs / whole if macs and whole else None)
        for key in ('before', 'after'):
            values = list(row[key].values())
            entry[key] = statistics.fmean(values) if values else None
            entry[f'{key}_std'] = statistics.stdev(values) if len(values) > 1 else None
            for other in (RANDOM, REFIT):
                entry[f'{key}_to_{other}'] = None
                if other in same and other != row['method']:
                    entry[f'{key}_to_{other}'] = paired_interval(row[key], same[other][key])
            entry[f'{key}_verdict'] = _verdict(entry[f'{key}_to_{RANDOM}'],
                                               entry[f'{key}_to_{REFIT}'])
        beside = {**same, 'dense': dense}
        entry['to'] = {other: paired_interval(row['after'], beside[other]['after'])
                       if beside.get(other) and other != row['method'] else None
                       for other in others}
        kc, plain = row['kc'], same.get(f'{row["method"]}-plain')
        entry['kc'] = statistics.fmean(kc.values()) if kc else None
        entry['kc_std'] = statistics.stdev(kc.values()) if len(kc) > 1 else None
        entry['kc_of_term'] = paired_interval(kc, plain['kc']) if plain else None
        masks = row['masks']
        entry['masks'] = {key: statistics.fmean(found[key] for found in masks.values())
                          for key in ('open', 'always') if masks}
        entry['masks_bring'] = paired_interval(
            row['after'], {seed: found['forced'] for seed, found in masks.items()})
        summary.append(entry)
    return summary


def label(method: str) -> str:
    """Name of a method, or of the dense network, in tables."""
    return METHODS[method].label if method in METHODS else method


def _verdict(to_random: Interval | None, to_refit: Interval | None) -> str:
    to_random, to_refit = (found if found is not None and found.pairs >= LEAST_PAIRS else None
                           for found in (to_random, to_refit))
    words = [] if to_random is None else [
        'pays' if to_random.above else 'costs' if to_random.below else '']
    words += ['leads'] if to_refit is not None and to_refit.above else []
    return ', '.join(filter(None, words))


def table(summary: Sequence[Mapping[str, Any]], title: str = '', markdown: bool = False,
          metric: str = METRIC) -> str:
    """The summary as text, for the terminal or as Markdown."""
    columns = ['budget', 'method', 'MACs', 'before', 'to random, before', NAMES[metric],
               'to random', 'to refit', 'seeds', 'verdict']
    masked = any(row['masks'] for row in summary)
    if masked:
        columns += ['masks open (%)', 'always open (%)', 'to all forced open']
    others = list(summary[0]['to']) if summary else []
    columns += [f'to {label(other)}' for other in others]
    measured = any(row['kc'] is not None for row in summary)
    if measured:
        columns += ['KC', 'KC to no term']
    cells = []
    for row in summary:
        macs = '' if row['macs'] is None else f'{row["macs"]:.1%}'
        verdict = '; '.join(filter(None, (
            row['before_verdict'] and f'{row["before_verdict"]} before', row['after_verdict'])))
        cells.append([f'{row["budget"]:.0%}', row['label'], macs, _cell(row, 'before'),
                      _text(row['before_to_random']), _cell(row, 'after'),
                      _text(row['after_to_random']), _text(row['after_to_refit']),
                      str(len(row['seeds'])), verdict])
        if masked:
            shares = [f'{row["masks"][key]:.1f}' if row['masks'] else ''
                      for key in ('open', 'always')]
            cells[-1] += [*shares, _text(row['masks_bring'])]
        cells[-1] += [_text(row['to'][other]) for other in others]
        if measured:
            cells[-1] += [_cell(row, 'kc', 4), _text(row['kc_of_term'], 4)]
    if not markdown:
        return format_table(columns, cells, title)
    lines = [columns, [':--', ':--'] + ['--:'] * (len(columns) - 2), *cells]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _text(interval: Interval | None, digits: int = 2) -> str:
    return '' if interval is None else f'{interval:.{digits}f}'


def _cell(row: Mapping[str, Any], key: str, digits: int = 2) -> str:
    if row[key] is None:
        return ''
    std = row[f'{key}_std']
    return f'{row[key]:.{digits}f}' + ('' if std is None else f' ± {std:.{digits}f}')


def plot(summary: Sequence[Mapping[str, Any]], path: Path, title: str = '',
         metric: str = METRIC) -> None:
    """The metric before and after retraining over MACs, a line a method; writes an image."""
    with saved_figure(path, (13, 4.5), ncols=2) as (figure, grid):
        shown = [name for name in METHODS if any(row['method'] == name for row in summary)]
        for axes, key in zip(grid.flat, ('before', 'after')):
            for number, name in enumerate(shown):
                own = [row for row in summary if row['method'] == name and row[key] is not None
                       and row['macs'] is not None]
                if own:
                    again = number // len(SERIES)  # colours are used again
                    axes.plot([100 * row['macs'] for row in own], [row[key] for row in own],
                              '--' if name.endswith('plain') else ('-', '-.', ':')[again % 3],
                              marker='os^vD'[again % 5], markersize=4,
                              color=f'C{number}', label=own[0]['label'])
            dense = [row['after'] for row in summary if row['method'] == 'dense']
            if dense and dense[0] is not None:
                axes.axhline(dense[0], color='0.4', linestyle=':', label='dense')
            axes.set_title(f'{key} retraining')
            axes.set_xlabel('MACs (% of dense)')
        grid.flat[0].set_ylabel(NAMES[metric])
        if grid.flat[1].has_data():
            grid.flat[1].legend(fontsize=7, loc='center left', bbox_to_anchor=(1.01, 0.5))
        figure.suptitle(title)


def write_report(folder: Path, summary: Sequence[Mapping[str, Any]],
                 rows: Sequence[Mapping[str, Any]], title: str, metric: str = METRIC,
                 **more: Any) -> None:
    """Write ``summary.json``, ``table.txt``, ``table.md`` and ``accuracy_over_macs.png``.

    Args:
        folder (Path): The work dir.
        summary (Sequence[dict]): Of :func:`summarise`.
        rows (Sequence[dict]): Of :func:`read_rows`.
        title (str): Of table and plot.
        metric (str): Key of :data:`NAMES`. Defaults to top-1.
        **more: Further entries of the summary.
    """
    entries = [_plain(entry) for entry in summary]
    content = dict(title=title, machine=machine_info(), summary=entries, rows=list(rows), **more)
    texts = {'summary.json': json.dumps(content, indent=1),
             'table.txt': table(summary, title, metric=metric),
             'table.md': table(summary, markdown=True, metric=metric)}
    for name, text in texts.items():
        with atomic_write(folder / name) as temporary:
            temporary.write_text(text + '\n')
    plot(summary, folder / 'accuracy_over_macs.png', title, metric)


def _plain(value: Any) -> Any:
    """With dicts in the place of intervals."""
    if isinstance(value, Interval):
        return value._asdict()
    return {key: _plain(part) for key, part in value.items()} if isinstance(value, dict) else value

"""Table and summary of a study."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmkcr.core import atomic_write
from mmkcr.visualization import format_table
from .curve_plots import plot_curve
from .machine import machine_info
from .study import Study

Results = Sequence[Mapping[str, Any]]


def flatten(numbers: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row by path: metrics under their names, measures as ``name/key``."""
    flat = {key: numbers[key] for key in ('params', 'macs')}
    flat.update(numbers['metrics'])
    for name, values in numbers.items():
        if isinstance(values, Mapping) and name != 'metrics':
            flat.update({f'{name}/{key}': value for key, value in values.items()})
    return flat


def summarise(study: Study, results: Results) -> list[dict[str, Any]]:
    """One row for every network and row of the study, over the seeds.

    Args:
        study (Study): The study.
        results (Sequence[dict]): Of :meth:`~lab.study_pipeline.StudyPipeline.run`.

    Returns:
        list[dict]: ``net``, ``row``, ``label``, ``seeds``, and by number ``mean``,
        ``std`` (of the sample, None for one seed) and ``by_seed``.
    """
    rows = []
    for net in study.nets:
        group = sorted((r for r in results if r['net'] == net), key=lambda r: r['seed'])
        for name, row in study.rows.items() if group else ():
            found = [flatten(result['rows'][name]) for result in group]
            values = {key: [numbers[key] for numbers in found] for key in found[0]}
            rows.append(dict(
                net=net, row=name, label=row.get('label', name),
                seeds=[result['seed'] for result in group], by_seed=values,
                mean={key: statistics.fmean(list_) for key, list_ in values.items()},
                std={key: statistics.stdev(list_) if len(list_) > 1 else None
                     for key, list_ in values.items()}))
    return rows


def table(study: Study, rows: Sequence[Mapping[str, Any]], markdown: bool = False) -> str:
    """The rows as text.

    Args:
        study (Study): Gives title and columns.
        rows (Sequence[dict]): Of :func:`summarise`.
        markdown (bool): As a Markdown table. Defaults to False: for the terminal.
    """
    columns = ['network', 'variant', 'params (k)', 'MACs (M)', *study.columns.values()]
    cells = [[row['net'], row['label'], f'{row["mean"]["params"] / 1e3:.1f}',
              f'{row["mean"]["macs"] / 1e6:.2f}', *(_cell(row, key) for key in study.columns)]
             for row in rows]
    if markdown:
        lines = [columns, [':--', ':--'] + ['--:'] * (len(columns) - 2), *cells]
        return '\n'.join(f'| {" | ".join(line)} |' for line in lines)
    seeds = sorted({seed for row in rows for seed in row['seeds']})
    return format_table(columns, cells, f'{study.title}; seeds {seeds}, mean ± standard deviation')


def _cell(row: Mapping[str, Any], key: str) -> str:
    if key not in row['mean']:
        return ''
    mean, std = row['mean'][key], row['std'][key]
    digits = 2 if abs(mean) >= 10 else 4
    return f'{mean:.{digits}f}' + ('' if std is None else f' ± {std:.{digits}f}')


def write_study(folder: Path, study: Study, rows: Sequence[Mapping[str, Any]], results: Results,
                options: Mapping[str, Any], **more: Any) -> None:
    """Write ``summary.json``, ``table.txt`` and ``table.md``, and accuracy over MACs as a figure.

    The figure is of the study's first column, a point a seed (DCS, figure 2).

    Args:
        folder (Path): The work dir.
        study (Study): The study.
        rows (Sequence[dict]): Of :func:`summarise`.
        results (Sequence[dict]): As there.
        options (dict): What was asked for.
        **more: Further entries of the summary.
    """
    content = dict(study=study.path.name, title=study.title, options=dict(options),
                   machine=machine_info(), rows=list(rows), runs=list(results), **more)
    texts = {'summary.json': json.dumps(content, indent=1), 'table.txt': table(study, rows),
             'table.md': table(study, rows, markdown=True)}
    for name, text in texts.items():
        with atomic_write(folder / name) as path:
            path.write_text(text + '\n')
    key, label = next(iter(study.columns.items()))
    for net in dict.fromkeys(row['net'] for row in rows):
        found = [row['by_seed'] for row in rows if row['net'] == net and key in row['by_seed']]
        labels = [row['label'] for row in rows if row['net'] == net and key in row['by_seed']]
        if found:
            plot_curve({name: values[key] for name, values in zip(labels, found)},
                       folder / f'accuracy_over_macs_{net}.png', 'MACs (M)', label,
                       x={name: [macs / 1e6 for macs in values['macs']]
                          for name, values in zip(labels, found)}, markers=True)

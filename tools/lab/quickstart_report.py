"""Table, summary and plots of a quickstart."""

import json
import statistics
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from mmkcr.apis.machine import machine_info
from mmkcr.core import atomic_write
from mmkcr.visualization import (
    format_table,
    plot_channel_masks,
    plot_curve,
    plot_gate_histograms,
)
from .quickstart import MODELS, OWN

COLUMNS = ('model', 'params (k)', 'MACs (M)', 'MACs', 'top-1 (%)', 'KC', 'ms / image', 'time')

Results = Sequence[Mapping[str, Any]]


def summarise(results: Results, latencies: Mapping[str, Mapping[str, float]]) -> List[Dict]:
    """One row for every model of every architecture, averaged over the seeds.

    Args:
        results (Sequence[dict]): Of :meth:`~lab.quickstart.Pipeline.run`.
        latencies (Mapping[str, Mapping[str, float]]): Milliseconds an image by
            architecture, ``dense``, ``closed`` and ``slim``, and ``*_ratio`` of both
            to the first; may be empty.

    Returns:
        list[dict]: Numbers; ``*_by_seed`` beside each mean.
    """
    rows = []
    for arch in dict.fromkeys(result['arch'] for result in results):
        group = sorted((r for r in results if r['arch'] == arch), key=lambda r: r['seed'])
        for name in MODELS:
            models = [result['models'][name] for result in group]
            row = dict(arch=arch, model=name, seeds=[result['seed'] for result in group])
            for key in ('params', 'macs', 'top1', 'kc', 'kc_held_out'):
                row[f'{key}_by_seed'] = [model[key] for model in models]
                row[key] = statistics.fmean(row[f'{key}_by_seed'])
            row.update({key: models[0][key] for key in ('digits', 'kc_digits', 'input_shape')})
            times = latencies.get(arch, {})
            side = name if name in OWN else 'slim'
            row['ms_per_image'] = times.get(side)
            row['time_ratio'] = 1. if side == 'dense' else times.get(f'{side}_ratio')
            rows.append(row)
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as text.

    Args:
        rows (Sequence[dict]): Of :func:`summarise`.
    """
    cells, dense = [], {}
    for row in rows:
        if row['model'] == 'dense':
            dense = row
        time = row['ms_per_image']
        top1 = f'{row["top1"]:.1f}'
        if len(row['seeds']) > 1:
            top1 += ' (' + ', '.join(f'{value:.1f}' for value in row['top1_by_seed']) + ')'
        cells.append((f'{row["arch"]} {MODELS[row["model"]]}', f'{row["params"] / 1e3:.1f}',
                      f'{row["macs"] / 1e6:.2f}', f'{row["macs"] / dense["macs"]:.1%}', top1,
                      f'{row["kc"]:.4f}', '' if time is None else f'{time:.3f}',
                      '' if time is None else f'{row["time_ratio"]:.1%}'))
    first = rows[0]
    title = (f'top-1 on {first["digits"]:.0f} held-out digits; KC of the features of '
             f'{first["kc_digits"]:.0f} training digits; seeds {first["seeds"]}')
    return format_table(COLUMNS, cells, title)


def verdict(rows: Sequence[Mapping[str, Any]]) -> List[str]:
    """What slimming cost in top-1 and saved in time, one sentence an architecture.

    Args:
        rows (Sequence[dict]): Of :func:`summarise`.
    """
    sentences = []
    for arch in dict.fromkeys(row['arch'] for row in rows):
        by_model = {row['model']: row for row in rows if row['arch'] == arch}
        dense, closed, plain, kcr = (
            by_model[name] for name in ('dense', 'closed', 'plain', 'kcr'))
        sentences.append(
            f'{arch}: {1 - kcr["macs"] / dense["macs"]:.1%} fewer MACs, top-1 '
            f'{closed["top1"] - dense["top1"]:+.2f} points in closed form, by search and '
            f'retraining {plain["top1"] - dense["top1"]:+.2f} points without and '
            f'{kcr["top1"] - dense["top1"]:+.2f} with the KCR term against the dense model; the '
            f'term takes KC from {plain["kc"]:.4f} to {kcr["kc"]:.4f}{_time(closed, kcr)}')
    return sentences


def _time(closed: Mapping[str, Any], searched: Mapping[str, Any]) -> str:
    """The end of a sentence about the time in eager PyTorch, if it was measured."""
    ratios = closed['time_ratio'], searched['time_ratio']
    if None in ratios:
        return ''
    text = (f'; in eager PyTorch {ratios[0]:.0%} of the time in closed form, '
            f'{ratios[1]:.0%} by search')
    return text if ratios[1] <= 1 else \
        f'{text}, which copies selected channels (other runtimes and sizes: docs/deploy.md)'


def write_summary(folder: Path, rows: Sequence[Mapping[str, Any]], results: Results,
                  options: Mapping[str, Any], **more: Any) -> None:
    """Write ``summary.json``.

    Args:
        folder (Path): The work dir.
        rows (Sequence[dict]): Of :func:`summarise`.
        results (Sequence[dict]): As of :func:`summarise`.
        options (dict): What was asked for.
        **more: Further entries.
    """
    runs = [dict(arch=result['arch'], seed=result['seed'], kept=result['slim']['kept'],
                 trainings=result['trainings']) for result in results]
    content = dict(options=dict(options), machine=machine_info(), rows=list(rows), runs=runs,
                   **more)
    with atomic_write(folder / 'summary.json') as path:
        path.write_text(json.dumps(content, indent=1) + '\n')


def plot_all(folder: Path, rows: Sequence[Mapping[str, Any]], results: Results) -> List[Path]:
    """Draw accuracy against MACs, KC over epochs, channels, gates and temperature.

    Args:
        folder (Path): The work dir.
        rows (Sequence[dict]): Of :func:`summarise`.
        results (Sequence[dict]): As of :func:`summarise`; the first of every
            architecture is drawn.

    Returns:
        list[Path]: The figures.
    """
    paths = [folder / 'accuracy_macs.png', folder / 'temperature.png']
    points = {f'{row["arch"]} {MODELS[row["model"]]}': row for row in rows
              if row['model'] != 'slim'}
    plot_curve({name: row['top1_by_seed'] for name, row in points.items()}, paths[0],
               'MACs (M)', 'top-1 (%)', markers=True,
               x={name: [macs / 1e6 for macs in row['macs_by_seed']]
                  for name, row in points.items()})
    first = {}
    for result in results:
        first.setdefault(result['arch'], result)
    plot_curve({arch: result['trainings']['search']['curves']['temperature']
                for arch, result in first.items()}, paths[1], ylabel='temperature of the gates')
    for arch, result in first.items():
        paths += _plot_one(folder, arch, result)
    return paths


def _plot_one(folder: Path, arch: str, result: Mapping[str, Any]) -> List[Path]:
    trainings, scores = result['trainings'], result['slim']['scores']
    channels, gates, curve = (folder / f'{arch}_{name}.png' for name in ('channels', 'gates', 'kc'))
    plot_channel_masks(scores, channels, f'{arch}: gates after the search')
    plot_gate_histograms(scores, gates, trainings['search']['curves']['temperature'][-1])
    curves = {MODELS[name]: trainings[name] for name in ('plain', 'kcr')}
    plot_curve({name: training['curves']['kc'] for name, training in curves.items()}, curve,
               ylabel='KC of the held-out digits',
               x={name: _epochs(training) for name, training in curves.items()})
    return [channels, gates, curve]


def _epochs(training: Mapping[str, Any]) -> Optional[List[int]]:
    """The epochs after which a training was validated: every second and the last."""
    epochs = training['epochs']
    found = list(range(2, epochs + 1, 2))
    return found if epochs % 2 == 0 else found + [epochs]

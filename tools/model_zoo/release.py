"""Make the assets of a release from work directories: weights, configs, logs, hashes, one table.

Of every model: NAME-HASH.pth as tools/publish.py writes it, NAME.py, a config that finds its files
beside it, NAME.json, the structure of a subnet, and NAME.log of its training. models.json and
README.md have a row a model: the metric of its last validation (or, with --evaluate, of a test
now), MACs, parameters, milliseconds beside the dense network, seed and command. SHA256SUMS has the
hashes.

Examples:
    python tools/model_zoo/release.py work_dirs/kcr-dense_vit-mini_1xb64_digits \\
        work_dirs/kcr-dense_vit-mini_1xb64_digits/compress --out release --evaluate
    python tools/model_zoo/release.py vit-mini_half=slim --out release --runtime openvino
    python tools/model_zoo/release.py compress-30_vit-mini_digits=slim --half --evaluate \\
        --out trained
"""

import contextlib
import copy
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.runner import Runner

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.machine import machine_info
from mmkcr.apis.inference import model_index
from mmkcr.apis.publish import publish
from mmkcr.apis.slim_files import config_text, subnet_name
from mmkcr.cli.command import Parser, add_trust_argument, command, quiet_hosts
from mmkcr.cli.launch import latest_checkpoint
from mmkcr.closed_form.options import CompressOptions
from mmkcr.core import Structure, atomic_write
from mmkcr.core.file_names import CONFIG, STRUCTURE, SUBNET
from mmkcr.core.io import file_sha256
from mmkcr.deploy.latency import measure_pair
from mmkcr.deploy.runtimes import RUNTIMES
from mmkcr.engine.build import (
    backbone_config,
    build_model,
    default_shape,
    dense_config,
    load_config,
    set_structure,
)
from mmkcr.models.tasks import find_task

TABLE, ROWS, HASHES = 'README.md', 'models.json', 'SHA256SUMS'
#: What a table shows of a metric's name, and the metrics that it shows.
METRICS = {'accuracy/top1': 'top-1 {:.1f} %', 'coco/bbox_mAP': 'box AP {:.3f}',
           'coco/segm_mAP': 'mask AP {:.3f}', 'mIoU': 'mIoU {:.1f}'}
#: The same as the metafiles have them: a name, and what makes per cent of it.
RESULTS = {'accuracy/top1': ('Top 1 Accuracy', 1), 'coco/bbox_mAP': ('box AP', 100),
           'coco/segm_mAP': ('mask AP', 100), 'mIoU': ('mIoU', 1)}


class Trained(NamedTuple):
    """What a work directory holds.

    Args:
        name (str): Of the model, as its files are called.
        config (Path): That it was trained with, or that ``compress`` wrote.
        checkpoint (Path): The last.
        log (Path, optional): Of the last run; None of what was not trained.
        metrics (dict[str, float]): Of its last validation; empty if there was none.
        command (str): That makes it again.
        data (str): That it was trained on, as the metafile says; '' of a config of others.
    """

    name: str
    config: Path
    checkpoint: Path
    log: Path | None
    metrics: dict[str, float]
    command: str
    data: str = ''


def read_work_dir(folder: Path, name: str = '') -> Trained:
    """Find what belongs to a model.

    Args:
        folder (Path): Of a training, or what ``mmkcr compress`` wrote.
        name (str): Of the model. Defaults to '': that of its config, with the share of the MACs
            where it was compressed.

    Raises:
        FileNotFoundError: There is no checkpoint.
        ValueError: There is no config, or more than one.
    """
    if (folder / CONFIG).is_file() and (folder / SUBNET).is_file():
        return _compressed(folder, name)
    configs = sorted(folder.glob('*.py'))
    if len(configs) != 1:
        raise ValueError(f'expected one config in the work directory `{folder}`, found '
                         f'{[path.name for path in configs]}')
    checkpoint = latest_checkpoint(str(folder))
    if checkpoint is None:
        raise FileNotFoundError(f'expected a checkpoint in `{folder}`, found none')
    stem = configs[0].stem
    logs = sorted(folder.glob('*/*.log'))
    return Trained(name or stem, configs[0], Path(checkpoint), logs[-1] if logs else None,
                   last_metrics(folder), f'mmkcr train {_shipped(stem)}', _data(stem))


def _shipped(stem: str) -> str:
    """The path of a config of this package by its name, else the file's name."""
    entry = model_index().get(stem)
    if entry is None:
        return f'{stem}.py'
    path = entry['Config']
    return path[path.index('configs/'):]


def _data(stem: str) -> str:
    return (model_index().get(stem) or {}).get('Metadata', {}).get('Training Data', '')


def _compressed(folder: Path, name: str) -> Trained:
    structure = Structure.load(folder / STRUCTURE)
    source, macs = structure.provenance, structure.macs
    stem = Path(source['config'].split('::')[-1]).stem
    config = source['config'] if '::' in source['config'] else _shipped(stem)
    asked = source.get('asked') or {}
    words = ['mmkcr', 'compress', config, 'CHECKPOINT', f'--target-{asked.get("cost", "macs")}',
             source.get('target', macs['subnet']), *_options(asked),
             '--images', source['calibration']['images'], '--seed', source['calibration']['seed']]
    command = ' '.join(map(str, words))
    return Trained(name or subnet_name(structure),
                   folder / CONFIG, folder / SUBNET, None, {}, command, _data(stem))


def _options(asked: Mapping[str, Any]) -> list[Any]:
    """Options of `mmkcr compress`, but for those of its defaults."""
    words: list[Any] = []
    for key, value in asked.items():
        default = 'backbone' if key == 'scope' else getattr(CompressOptions, key, None)
        if key != 'cost' and value != default:
            listed = value if isinstance(value, (list, tuple)) else [value]
            words += [f'--{key}', *(() if value is True else listed)]
    return words


def last_metrics(folder: Path) -> dict[str, float]:
    """Metrics of the last validation in the logs of a work directory; empty if there was none."""
    for path in sorted(folder.glob('*/vis_data/scalars.json'), reverse=True):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found = [row for row in rows if set(row) & set(METRICS)]
        if found:
            return {key: value for key, value in found[-1].items() if key in METRICS}
    return {}


class Options(NamedTuple):
    """How models are measured.

    Args:
        runtime (str): Of :data:`~mmkcr.deploy.runtimes.RUNTIMES`.
        repeats (int): Pairs; 0: no times.
        evaluate (bool): Test every model on its own test set instead of quoting its log.
        half (bool): Store matrices in 16 bits.
    """

    runtime: str = 'onnxruntime'
    repeats: int = 30
    evaluate: bool = False
    half: bool = False


def release(folders: Sequence[str], out: Path, options: Options) -> list[dict[str, Any]]:
    """Write the assets of some models.

    Args:
        folders (Sequence[str]): Work directories, or ``NAME=DIRECTORY``.
        out (Path): Folder; files of the same names are replaced.
        options (Options): How to measure.

    Returns:
        list[dict]: A row a model, as in ``models.json``.

    Raises:
        FileNotFoundError: A work directory lacks something.
        ValueError: Two models of one name, or a folder that is no work directory.
    """
    found = []
    for text in folders:
        name, _, folder = text.rpartition('=')
        if not Path(folder).is_dir():
            raise FileNotFoundError(f'expected a work directory at `{folder}`, found none')
        found.append(read_work_dir(Path(folder), name))
    names = [model.name for model in found]
    if len(set(names)) < len(names):
        raise ValueError(f'expected models of different names, found {sorted(names)}: say '
                         'NAME=DIRECTORY')
    rows = [assets(model, out, options) for model in found]
    with atomic_write(out / ROWS) as path:
        path.write_text(json.dumps(dict(machine=machine_info(), date=time.strftime('%Y-%m-%d'),
                                        runtime=options.runtime, models=rows), indent=1) + '\n')
    with atomic_write(out / TABLE) as path:
        path.write_text(table(rows, options))
    files = [file for row in rows for file in row['files']] + [ROWS, TABLE]
    with atomic_write(out / HASHES) as path:
        path.write_text(''.join(f'{file_sha256(out / file)}  {file}\n' for file in sorted(files)))
    return rows


def assets(model: Trained, out: Path, options: Options) -> dict[str, Any]:
    """Files and row of one model."""
    config = load_config(model.config)
    published = publish(model.config, model.checkpoint, out, model.name, half=options.half)
    files = [published.path.name, f'{model.name}.py']
    structure = published.meta['structure']
    if structure is not None:
        files.append(f'{model.name}.json')
        Structure.load(structure).save(out / files[-1])
    if model.log is not None:
        files.append(f'{model.name}.log')
        with atomic_write(out / files[-1]) as path:
            shutil.copyfile(model.log, path)
    write_config(config, out / f'{model.name}.py', published.path.name)
    metrics = test_metrics(config, published.path) if options.evaluate else model.metrics
    return dict(name=model.name, files=files, bytes=published.bytes['published'],
                params=published.meta['params'], metrics=metrics, results=_results(metrics),
                data=model.data, command=model.command,
                seed=published.meta['provenance']['seed'], **times(config, options))


def _results(metrics: dict[str, float]) -> dict[str, float]:
    return {RESULTS[key][0]: round(RESULTS[key][1] * value, 1) for key, value in metrics.items()}


def write_config(config: Config, path: Path, weights: str) -> None:
    """A config that finds its structure and its weights in its own folder."""
    config = copy.deepcopy(config)
    if backbone_config(config).get('structure') is not None:
        set_structure(config, f'{{{{ fileDirname }}}}/{path.stem}.json')
    config.load_from, config.resume = f'{{{{ fileDirname }}}}/{weights}', False
    config.pop('work_dir', None)
    with atomic_write(path) as temporary:
        temporary.write_text(config_text(config), encoding='utf8')


def test_metrics(config: Config, weights: Path) -> dict[str, float]:
    """Metrics on the test set of the config, of those that a table shows."""
    config = copy.deepcopy(config)
    config.load_from, config.resume, config.work_dir = str(weights), False, 'work_dirs/release'
    return {key: float(value) for key, value in Runner.from_cfg(config).test().items()
            if key in METRICS and isinstance(value, Real)}


def times(config: Config, options: Options) -> dict[str, Any]:
    """MACs of the model, or of the backbone of a detector or segmentor, and times in pairs.

    The other side of a pair is the dense network; of a dense one it is itself.
    """
    model, dense = (find_task(build_model(one)) for one in (config, dense_config(config)))
    shape = default_shape(config, model)
    part = 'model' if config.get('default_scope', 'mmpretrain') == 'mmpretrain' else 'backbone'
    sides = [side.backbone if part == 'backbone' else side for side in (dense, model)]
    torch.set_num_threads(1)
    timing = measure_pair(*sides, torch.randn(1, *shape), max(options.repeats, 1), 3,
                          options.runtime if options.repeats else 'eager', 1)
    found = dict(part=part, input_shape=list(shape), macs=timing.macs_slim,
                 dense_macs=timing.macs_dense)
    if options.repeats:
        found.update(ms=1e3 * median(timing.slim), dense_ms=1e3 * median(timing.dense),
                     ratio=timing.ratio)
    return found


def table(rows: Sequence[dict[str, Any]], options: Options) -> str:
    """The table as a page of Markdown."""
    machine = machine_info()
    lines = [
        '# Models', '',
        f'MACs and milliseconds are of one image; of detectors and segmentors those of the '
        f'backbone. Times in `{options.runtime}`: one thread, its clock, '
        f'{options.repeats} pairs in turns with the dense network; the ratio is the median of '
        f'neighbours. {machine["cpu"]}, {machine["cores"]} cores, load {machine["load_average"]}, '
        f'torch {machine["torch"]}, mmkcr {machine["mmkcr"]}, {time.strftime("%Y-%m-%d")}. '
        f'`{HASHES}` has the hashes; configs find structure and weights beside them.', '',
        '| Model | Result | MACs (M) | Params (M) | ms | Time, of dense | Seed | Command |',
        '| :-- | :-- | --: | --: | --: | --: | --: | :-- |']
    for row in rows:
        result = ', '.join(text.format(row['metrics'][key]) for key, text in METRICS.items()
                           if key in row['metrics'])
        ms, ratio = (f'{row[key]:.3g}' if key in row else '-' for key in ('ms', 'ratio'))
        lines.append(
            f'| [{row["name"]}]({row["files"][0]}) | {result or "not evaluated"} | '
            f'{row["macs"] / 1e6:.4g} | {row["params"] / 1e6:.3g} | {ms} | {ratio} | '
            f'{row["seed"]} | `{row["command"]}` |')
    return '\n'.join(lines) + '\n'


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('work_dirs', nargs='+', metavar='WORK_DIR',
                        help='folder of a training or of compress, or NAME=FOLDER')
    parser.add_argument('--out', default='work_dirs/release', metavar='DIR',
                        help='folder of the assets (%(default)s)')
    parser.add_argument('--runtime', choices=RUNTIMES, default='onnxruntime',
                        help='that times are measured in (%(default)s)')
    parser.add_argument('--repeats', type=int, default=30,
                        help='pairs that are timed; 0: none (%(default)s)')
    parser.add_argument('--evaluate', action='store_true',
                        help='test every published file instead of quoting its log')
    parser.add_argument('--half', action='store_true',
                        help='store matrices in 16 bits: half the size')
    add_trust_argument(parser)
    return parser


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Publish, measure, write and print."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    if args.repeats < 0:
        raise ValueError(f'expected `--repeats` of at least 0, found {args.repeats}')
    out = Path(args.out)
    with contextlib.redirect_stdout(sys.stderr):
        rows = release(args.work_dirs, out, Options(args.runtime, args.repeats, args.evaluate,
                                                    args.half))
    print((out / TABLE).read_text(), end='')
    print(f'Wrote {sum(len(row["files"]) for row in rows)} files of {len(rows)} models to {out}, '
          f'with {HASHES}')


if __name__ == '__main__':
    main()

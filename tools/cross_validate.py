"""Cross-validate hyper-parameters on a share of the training set (KCR v2, section 4.1).

Every fold is trained on its part and validated on the part that it holds out,
with the validation transforms; the validation set is never touched. Finished
folds are kept and an interrupted one goes on: run the same command again.

Presets: lambda (price, 10 %), eta (KCR's weight, 10 %), warmup (t_warm, 10 %),
rank (gamma0, 20 % of the training set).

Examples:
    python tools/cross_validate.py CONFIG --preset lambda
    python tools/cross_validate.py CONFIG --grid model.price.weight=0.1:0.5:0.05 --fraction 0.1
    python tools/cross_validate.py CONFIG --grid 'custom_hooks[WarmupSwitchHook].begin=30,60,90'
"""

import contextlib
import copy
import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mmengine
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.utils import ManagerMeta, ManagerMixin

from lab.folds import Deal, fold_config, fold_indices
from lab.grids import PRESETS, combinations, parse_grid, preset_grid, with_values
from mmkcr.cli.command import Parser, add_options_argument, command, quiet_hosts
from mmkcr.cli.launch import one_run, resume_latest
from mmkcr.core import atomic_write, locked
from mmkcr.datasets import check_data_folders
from mmkcr.datasets.part import class_labels, sample_sources
from mmkcr.engine.build import build_model, load_config, run_folder
from mmkcr.registry import DATASETS
from mmkcr.version import __version__
from mmkcr.visualization import format_table

RECORD = 'stage.json'


def digest(inputs: Any) -> str:
    """SHA-256 of anything that JSON holds, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def run_stage(folder: Path, inputs: Mapping[str, Any],
              work: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Run a stage, unless it is finished with the same inputs.

    ``<folder>/stage.json`` is written before the work, so that the next call
    finds an unfinished stage (``work`` then goes on with what is in the folder),
    and again with the result after it. A folder of other inputs, or of other
    versions of torch, mmengine or this package, is emptied first.

    Args:
        folder (Path): The stage's own.
        inputs (dict): All that the result depends on, of JSON types: configs,
            and digests of the files that earlier stages wrote.
        work (Callable): Takes the folder; returns the result, of JSON types.

    Returns:
        dict: The result.

    Raises:
        FileExistsError: The folder holds something else than a stage.
    """
    inputs = dict(inputs, versions=[torch.__version__, mmengine.__version__, __version__])
    key, record = digest(inputs), folder / RECORD
    found = json.loads(record.read_text()) if record.is_file() else {}
    if found.get('key') == key and 'result' in found:
        return found['result']
    if found.get('key') != key:
        _empty(folder)
        _write(record, dict(key=key, inputs=inputs))
    result = work(folder)
    _write(record, dict(key=key, inputs=inputs, result=result))
    return json.loads(json.dumps(result))


def _empty(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / RECORD).is_file():
            raise FileExistsError(f'expected an empty folder or one of an earlier run, found other '
                                  f'files in `{folder}`')
        shutil.rmtree(folder)


def _write(path: Path, content: dict[str, Any]) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + '\n')


class Score(NamedTuple):
    """Result of one combination of values.

    Args:
        values (dict): Value by config path.
        folds (list[float]): The metric by fold.
        mean (float): Over folds.
        std (float): Sample standard deviation over folds.
    """

    values: dict[str, Any]
    folds: list[float]
    mean: float
    std: float


def cross_validate(config: Config,
                   grids: Mapping[str, Sequence[Any]],
                   work_dir: str | Path,
                   deal: Deal = Deal(),  # noqa: B008
                   metric: str | None = None,
                   report: Callable[[str], Any] = print) -> list[Score]:
    """Train and validate every combination of values on every fold.

    The validation set of the config is never touched: a fold is validated on
    the part of the training set that it holds out, with the validation
    transforms. Every fold is a recorded stage (:func:`run_stage`): a finished one
    with the same settings is not run again, and an interrupted one goes on from its
    last checkpoint. Checkpoints of finished folds are removed.

    Args:
        config (Config): A training config: a search, a retraining or any other
            with a classification data set.
        grids (dict[str, Sequence]): Values by config path, see
            :func:`~lab.grids.parse_grid`.
        work_dir (str | Path): Folder of results and runs.
        deal (Deal): Share, folds and seed.
        metric (str, optional): Such as ``'accuracy/top1'``. Defaults to the
            first that the evaluator gives.
        report (Callable): Takes a line of progress. Defaults to ``print``.

    Returns:
        list[Score]: In the order of the grid; see :func:`best`.

    Raises:
        FileNotFoundError: The data is not on disk.
        ValueError: A path that the config does not have, or folds that cannot be
            dealt; nothing is written then. An unknown metric, after the first
            fold, which is kept.
    """
    work_dir, tried = Path(work_dir), list(combinations(grids))
    counts, scores = _check(config, tried, deal), []
    with locked(work_dir):
        for values in tried:
            name, found = _slug(values), []
            for fold, count in enumerate(counts):
                run = fold_config(with_values(config, values), deal, fold, count)
                found.append(_pick(train_fold(run, work_dir / name / f'fold_{fold}'), metric))
                report(f'[{len(scores) * deal.folds + fold + 1}/{len(tried) * deal.folds}] '
                       f'{name} fold {fold}: {found[-1]:.4f}')
            scores.append(_score(values, found))
    return scores


def train_fold(config: Config, folder: Path) -> dict[str, float]:
    """Train a config as a recorded stage, and remove its checkpoints.

    Args:
        config (Config): Complete config of a run.
        folder (Path): The stage's own.

    Returns:
        dict[str, float]: Metrics of the last validation.
    """
    def work(folder: Path) -> dict[str, Any]:
        config.work_dir, config.launcher = str(folder), 'none'
        config.experiment_name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        resume_latest(config)
        with drop_instances(), one_run(config) as runner:
            runner.train()
            scalars = runner.message_hub.log_scalars
            return dict(metrics={name.removeprefix('val/'): float(buffer.current())
                                 for name, buffer in scalars.items()
                                 if name.startswith('val/') and not name.endswith('time')})

    result = run_stage(folder, dict(config=config.to_dict()), work)
    for checkpoint in folder.glob('*.pth'):
        checkpoint.unlink()
    return result['metrics']


@contextlib.contextmanager
def drop_instances() -> Iterator[None]:
    """Drop what a Runner leaves behind in the process: hubs, loggers and their files."""
    before = {manager: set(manager._instance_dict) for manager in _managers()}
    try:
        yield
    finally:
        for manager in _managers():
            for name in set(manager._instance_dict) - before.get(manager, set()):
                instance = manager._instance_dict.pop(name)
                for handler in list(getattr(instance, 'handlers', ())):
                    handler.close()


def _managers() -> Iterator[ManagerMeta]:
    """The classes whose instances MMEngine keeps by name, each in a registry of its own."""
    waiting = [ManagerMixin]
    while waiting:
        manager = waiting.pop()
        waiting += manager.__subclasses__()
        yield manager


def best(scores: Sequence[Score], minimize: bool = False) -> Score:
    """The combination of the best mean, the first of equal ones.

    Args:
        scores (Sequence[Score]): From :func:`cross_validate`.
        minimize (bool): A lower metric is better. Defaults to False.
    """
    return min(scores, key=lambda score: score.mean if minimize else -score.mean)


def _check(config: Config, tried: Sequence[Mapping], deal: Deal) -> list[int]:
    """Refuse what would fail later; gives the size of every fold's training side."""
    if not any(tried):
        raise ValueError('expected at least one grid with a value, found none')
    for key in ('train_dataloader', 'val_dataloader', 'train_cfg', 'val_evaluator'):
        if not config.get(key):
            raise ValueError(f'expected a training config with `{key}`, found none')
    check_data_folders(config, ('train_dataloader', ))
    for values in tried:
        build_model(with_values(config, values))
    init_default_scope(config.get('default_scope', 'mmengine'))
    dataset = DATASETS.build(copy.deepcopy(dict(config.train_dataloader.dataset)))
    if hasattr(dataset, 'full_init'):
        dataset.full_init()
    labels, sources = class_labels(dataset), sample_sources(dataset)
    return [len(fold_indices(labels, *deal[:2], fold, deal.seed, sources)[0])
            for fold in range(deal.folds)]


def _pick(metrics: Mapping[str, float], name: str | None) -> float:
    if not metrics or (name is not None and name not in metrics):
        raise ValueError(f'expected the metric `{name or "any"}` of the evaluator, found '
                         f'{sorted(metrics)}')
    return metrics[name] if name is not None else next(iter(metrics.values()))


def _score(values: dict[str, Any], folds: list[float]) -> Score:
    mean = math.fsum(folds) / len(folds)
    return Score(values, folds, mean, math.sqrt(
        math.fsum((value - mean)**2 for value in folds) / (len(folds) - 1)))


def _slug(values: Mapping[str, Any]) -> str:
    """A folder's name, and a label: ``price.weight=0.1``."""
    text = '_'.join(f'{".".join(path.split(".")[-2:])}={value}' for path, value in values.items())
    return re.sub(r'[^\w.=-]', '-', text)


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='training config, with a classification data set')
    parser.add_argument('--grid', action='append', default=[], metavar='PATH=VALUES',
                        help='first:last:step or a,b,c; several grids are combined (none)')
    parser.add_argument('--preset', action='append', default=[], choices=sorted(PRESETS),
                        help="the paper's grids; several are combined (none)")
    parser.add_argument('--folds', type=int, default=5, help='(%(default)s)')
    parser.add_argument('--fraction', type=float,
                        help='share of the training set (0.1, or that of the preset)')
    parser.add_argument('--seed', type=int, default=0, help='of share and folds (%(default)s)')
    parser.add_argument('--metric', help='such as accuracy/top1; default: the first one')
    parser.add_argument('--minimize', action='store_true', help='a lower metric is better')
    parser.add_argument('--work-dir', metavar='DIR',
                        help='folder of results and runs (work_dirs/<config name>/'
                        'cross_validation)')
    add_options_argument(parser)
    return parser


def read_grids(config: Config, grids: Sequence[str], presets: Sequence[str]) -> dict[str, list]:
    """Values by path of ``--grid`` and ``--preset``.

    Raises:
        ValueError: A path is given twice.
    """
    given = [parse_grid(text) for text in grids]
    given += [preset_grid(name, config) for name in presets]
    if len(dict(given)) < len(given):
        raise ValueError('expected every path of the grids once, found '
                         f'{[path for path, _ in given]}')
    return dict(given)


def print_table(scores: Sequence[Score], top: Score) -> None:
    """Print one row a combination, the best one marked."""
    columns = (*(path for path in top.values), 'mean', 'std',
               *(f'fold {number}' for number in range(len(top.folds))), 'best')
    rows: list[list[Any]] = [[
        *score.values.values(), f'{score.mean:.3f}', f'{score.std:.3f}',
        *(f'{value:.3f}' for value in score.folds), '*' if score is top else ''
    ] for score in scores]
    print(format_table(columns, rows))


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Run what is left of the study, and print it."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    config = load_config(args.config, args.cfg_options)
    grids = read_grids(config, args.grid, args.preset)
    fraction = args.fraction
    if fraction is None:
        fraction = max((PRESETS[name].fraction for name in args.preset), default=0.1)
    work_dir = Path(args.work_dir or run_folder(config, args.config) / 'cross_validation')
    scores = cross_validate(config, grids, work_dir, Deal(fraction, args.folds, args.seed),
                            args.metric)
    top = best(scores, args.minimize)
    print_table(scores, top)
    chosen = ', '.join(f'{path} = {value}' for path, value in top.values.items())
    print(f'Best: {chosen} ({top.mean:.3f} +- {top.std:.3f} over {args.folds} folds)')
    summary = dict(best=top._asdict(), scores=[score._asdict() for score in scores])
    with atomic_write(work_dir / 'summary.json') as temporary:
        temporary.write_text(json.dumps(summary, indent=1), encoding='utf8')


if __name__ == '__main__':
    main()

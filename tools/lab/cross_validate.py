"""Cross-validation of hyper-parameters on a share of the training set (KCR v2, section 4.1)."""

import contextlib
import copy
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.utils import ManagerMeta, ManagerMixin

from mmkcr.cli.launch import one_run, resume_latest
from mmkcr.core import locked
from mmkcr.datasets import check_data_folders
from mmkcr.datasets.part import class_labels, sample_sources
from mmkcr.engine.build import build_model
from mmkcr.registry import DATASETS
from .folds import Deal, fold_config, fold_indices
from .grids import combinations, with_values
from .stages import run_stage


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
    transforms. Every fold is a recorded stage (:mod:`lab.stages`): a finished one
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

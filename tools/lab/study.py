"""Studies: named variants of a training, over networks and seeds, in one table.

A study is a YAML file::

    title: What the mask brings
    nets: [swin-mini, vit-mini]     # replaces {net} everywhere; `1xb*` is any batch size
    input_shape: [3, 32, 32]        # that MACs are counted for (what the configs say)
    stages:
      dense: {train: kcr-dense_{net}_1xb64_digits.py}
      search: {train: kcr-search_{net}_1xb64_digits.py, overrides: {model.price.weight: 0.4}}
      slim: {slim: search, target: 0.8, divisor: 8}
      made: {call: 'package.module:function', config: dense.py, start: dense, arguments: {k: 3}}
      kcr: {train: kcr-retrain_{net}_1xb64_digits.py, start: slim}
    rows:
      dense: {label: dense, config: kcr-dense_{net}_1xb64_digits.py, weights: dense}
      kcr: {label: with KCR, config: kcr-deploy_{net}_1xb64_digits.py, weights: kcr}
    measures: [kernel]
    columns: {accuracy/top1: top-1 (%), kernel/kc: KC}

Names of configs are relative to the study. A stage is run once a network and seed, whatever number
of rows read it. ``start`` names an earlier stage to begin with: its weights, and the structure that
it wrote or started from itself; ``from_scratch: true`` takes the structure alone. ``overrides`` are
config entries by path, as of ``tools/cross_validate.py``; ``options`` of a training are set before
``compression`` is read, as ``--cfg-options`` are. ``{stages}`` in options, arguments and configs of
rows is the folder of the stages, and the argument ``weights`` the name of one.

A ``call`` stage runs a function that takes a :class:`Call`; it may write ``structure.json`` and
``subnet.pth`` into its folder, which then is a start as a slimming is.
"""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config

from mmkcr.core import parse_target
from mmkcr.engine.build import load_config
from .pipeline import Measure, Start

#: Measures of a trained model by name: module and function (:data:`~.pipeline.Measure`).
MEASURES = dict(kernel='lab.measures:kernel_measure',
                information='lab.measures:information_measure',
                masks='lab.measures:mask_measure',
                backbone='lab.measures:backbone_measure',
                questions='lab.measures:question_measure')
_KINDS = dict(train={'options', 'overrides', 'start', 'from_scratch'}, slim={'target', 'divisor'},
              call={'config', 'overrides', 'start', 'arguments'})
_ROW = {'label', 'config', 'weights', 'overrides'}
_PLACE = re.compile(r'\{stages\}/([^/]+)')
_STUDY = {'title', 'nets', 'input_shape', 'stages', 'rows', 'measures', 'columns'}


class Call(NamedTuple):
    """What the function of a ``call`` stage is given; it returns a dict of JSON types.

    Args:
        config (Config): Prepared, with overrides.
        start (Start, optional): Files of the stage that it starts from.
        folder (Path): For its files.
        seed (int): Of everything random.
        arguments (dict): As the study has them.
    """

    config: Config
    start: Start | None
    folder: Path
    seed: int
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class StudyOptions:
    """How a study is run.

    Args:
        work_dir (str): Folder for everything that is written.
        data_root (str): Takes the place of ``data/digits`` in every config.
            Defaults to ``'data/digits'``.
        epochs_factor (float): Schedules are stretched by it. Defaults to 1.
        train_slice (bool): See :func:`~lab.run_settings.hold_out_of_train`.
            Defaults to False.
        rows (tuple[str], optional): See :class:`Study`. Defaults to None: all.
    """

    work_dir: str
    data_root: str = 'data/digits'
    epochs_factor: float = 1.
    train_slice: bool = False
    rows: tuple[str, ...] | None = None


class Study:
    """A study file, checked.

    Args:
        path (str | Path): The file.
        rows (Sequence[str], optional): Some of its rows; only stages that they
            need are left. Defaults to None: all.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Unknown keys, stages, measures or rows, or a stage that
            starts from a later one.
    """

    def __init__(self, path: Path, rows: Sequence[str] | None = None) -> None:
        content = load_config(path)._cfg_dict.to_dict()
        _check_keys(content, _STUDY, 'the study', {'nets', 'stages', 'rows'})
        for key, kind in dict(nets=list, stages=dict, rows=dict, columns=dict,
                              measures=list).items():
            if key in content and not isinstance(content[key], kind):
                raise ValueError(f'expected a {kind.__name__} as `{key}` of the study, found '
                                 f'{str(content[key]):.60}')
        self.path = Path(path)
        self.title = content.get('title', self.path.stem)
        self.nets: list[str] = content['nets']
        self.input_shape: list[int] | None = content.get('input_shape')
        self.stages: dict[str, dict] = content['stages']
        self.rows: dict[str, dict] = content['rows']
        self.columns: dict[str, str] = content.get('columns', {'accuracy/top1': 'top-1 (%)'})
        self.measures = {name: self._measure(name) for name in content.get('measures', [])}
        for number, (name, stage) in enumerate(self.stages.items()):
            _check_keys(stage, _KINDS[self.kind(name)] | {self.kind(name)}, f'stage `{name}`')
            self._check_references(f'stage `{name}`', stage, list(self.stages)[:number])
            if stage.get('target') is not None:
                parse_target(stage['target'], 2**62)
        for name, row in self.rows.items():
            _check_keys(row, _ROW, f'row `{name}`', {'config', 'weights'})
            self._check_references(f'row `{name}`', row, list(self.stages))
        if rows is not None:
            self._keep(rows)

    def kind(self, stage: str) -> str:
        """'train', 'slim' or 'call'."""
        kinds = [kind for kind in _KINDS if kind in self.stages[stage]]
        if len(kinds) != 1:
            raise ValueError(f'expected one of {sorted(_KINDS)} in stage `{stage}` of '
                             f'{self.path}, found {sorted(self.stages[stage])}')
        return kinds[0]

    def file(self, name: str, net: str) -> Path:
        """The config of a name in the study; ``*`` in it may be anything."""
        path = self.path.parent / name.replace('{net}', net)
        return next(path.parent.glob(path.name), path)

    def steps(self) -> int:
        """Stages and evaluations of one network with one seed."""
        return len(self.stages) + len(self.rows)

    def _keep(self, rows: Sequence[str]) -> None:
        unknown = sorted(set(rows) - set(self.rows))
        if unknown or not rows:
            raise ValueError(f'expected rows among {list(self.rows)} of {self.path}, found '
                             + (f'`{unknown[0]}`' if unknown else 'none'))
        self.rows = {name: row for name, row in self.rows.items() if name in rows}
        needed = {row['weights'] for row in self.rows.values()}
        for name in reversed(list(self.stages)):  # a stage begins with earlier ones
            if name in needed:
                needed |= self.reads(name)
        self.stages = {name: stage for name, stage in self.stages.items() if name in needed}

    def reads(self, name: str) -> set[str]:
        """Stages that a stage begins with, or whose files its options or arguments name."""
        stage = self.stages[name]
        found = {value for _, value in _references(stage)}
        for values in (stage.get('options') or {}, stage.get('arguments') or {}):
            for value in filter(lambda value: isinstance(value, str), values.values()):
                found |= set(_PLACE.findall(value))
        return found

    @staticmethod
    def _check_references(where: str, entry: Mapping, known: Sequence[str]) -> None:
        for key, value in _references(entry):
            if value not in known:
                raise ValueError(f'expected `{key}` of {where} among the stages {list(known)} '
                                 f'before it, found `{value}`')

    def _measure(self, name: str) -> Measure:
        if name not in MEASURES:
            raise ValueError(f'expected measures among {sorted(MEASURES)}, found `{name}` in '
                             f'{self.path}')
        return import_function(MEASURES[name])


def _references(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Keys of a stage or row that name a stage, with its name."""
    found = [(key, entry[key]) for key in ('start', 'slim', 'weights') if entry.get(key)]
    weights = (entry.get('arguments') or {}).get('weights')
    return [*found, ('arguments.weights', weights)] if weights else found


def import_function(name: str) -> Callable:
    """The function of ``'package.module:name'``."""
    module, _, function = name.partition(':')
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f'expected a function `package.module:name`, found `{name}` '
                         f'({error})') from error


def _check_keys(entry: Any, known: set, where: str, required: Sequence[str] = ()) -> None:
    if not isinstance(entry, Mapping):
        raise ValueError(f'expected keys and values in {where}, found `{entry}`')
    unknown = sorted(set(entry) - set(known)) or sorted(set(required) - set(entry))
    if unknown:
        what = 'without' if unknown[0] in required else 'with'
        raise ValueError(f'expected {where} with keys among {sorted(known)}, found one {what} '
                         f'`{unknown[0]}`')

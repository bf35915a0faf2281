"""The stages of a study, run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmkcr.core import atomic_write
from mmkcr.core.file_names import STRUCTURE, SUBNET
from mmkcr.engine.build import load_config, read_config
from .grids import resolve_path, with_values
from .jobs import Say
from .pipeline import StagedPipeline, Start
from .run_settings import move_data, prepare_run
from .study import Call, Study, StudyOptions, import_function


class StudyPipeline(StagedPipeline):
    """All stages and rows of a study for one network and seed.

    Args:
        study (Study): What.
        net (str): Among the study's.
        seed (int): Of everything random.
        options (StudyOptions): How.
        say (Callable): See :data:`~lab.jobs.Say`. Defaults to silence.
    """

    def __init__(self, study: Study, net: str, seed: int, options: StudyOptions,
                 say: Say = lambda *_: None) -> None:
        super().__init__(f'{net} seed {seed}', seed,
                         Path(options.work_dir) / net / f'seed{seed}', say)
        self.study, self.net, self.options = study, net, options
        self.results: dict[str, dict] = {}

    def run(self) -> dict[str, Any]:
        """Run what is not finished.

        Returns:
            dict: ``net``, ``seed``, results of all ``stages`` and numbers of
            all ``rows``.
        """
        for name in self.study.stages:
            self.results[name] = getattr(self, f'_{self.study.kind(name)}_stage')(name)
        rows = {name: self._row(name) for name in self.study.rows}
        return dict(net=self.net, seed=self.seed, stages=self.results, rows=rows)

    def config(self, name: str, overrides: Mapping[str, Any] | None = None,
               options: Mapping[str, Any] | None = None) -> Config:
        """A config of the study as it is run."""
        config = with_values(load_config(self._file(name), self._placed(options)), overrides or {})
        move_data(config._cfg_dict, 'data/digits', self.options.data_root)
        return prepare_run(config, self.seed, self.options.epochs_factor,
                           self.options.train_slice)

    def start(self, stage: str | None) -> Start | None:
        """What a stage left for others to start from; None for none.

        Raises:
            ValueError: The stage wrote neither a checkpoint nor a subnet.
        """
        if stage is None:
            return None
        weights = Path(self.results[stage].get('checkpoint', self.folder / stage / SUBNET))
        if not weights.is_file():
            raise ValueError(f'expected weights of the stage `{stage}` to start from, found none')
        return Start(str(weights), self._structure(stage))

    def _structure(self, stage: str) -> str | None:
        file, before = self.folder / stage / STRUCTURE, self.study.stages[stage].get('start')
        if file.is_file():
            return str(file)
        return None if before is None else self._structure(before)

    def _file(self, name: str) -> Path:
        return self.study.file(name.replace('{stages}', str(self.folder.absolute())), self.net)

    def _placed(self, values: Mapping[str, Any] | None) -> dict[str, Any]:
        """Values with the folder of the stages where they say ``{stages}``."""
        return {key: value.replace('{stages}', str(self.folder)) if isinstance(value, str)
                else value for key, value in (values or {}).items()}

    def _train_stage(self, name: str) -> dict[str, Any]:
        stage = self.study.stages[name]
        start = self.start(stage.get('start'))
        if start is not None and stage.get('from_scratch'):
            start = Start(None, start.structure)
        config = self.config(stage['train'], stage.get('overrides'), stage.get('options'))
        return self.train(name, config, start)

    def _slim_stage(self, name: str) -> dict[str, Any]:
        stage = self.study.stages[name]
        search = self.study.stages[stage['slim']]
        file = self._file(search['train'])
        options = self._placed(search.get('options'))
        config = load_config(file, options)
        overrides = {resolve_path(config, key): value
                     for key, value in (search.get('overrides') or {}).items()}
        if read_config(file).get('compression') is not None:  # overrides are of what it stands for
            file, options = self._written(stage['slim'], with_values(config, overrides)), {}
        else:
            options.update(overrides)
        start = self.start(search.get('start'))
        if start is not None and start.structure is not None:  # fixed beside the gates
            options['model.architecture.backbone.structure'] = start.structure
        return self.slim(name, file, self.results[stage['slim']]['checkpoint'],
                         stage.get('target'), stage.get('divisor', 1), options,
                         self.study.input_shape)

    def _written(self, stage: str, config: Config) -> Path:
        """File of a config that has none of its own."""
        file = self.folder / 'configs' / f'{stage}.py'
        with atomic_write(file) as temporary:
            temporary.write_text(config.pretty_text)
        return file

    def _call_stage(self, name: str) -> dict[str, Any]:
        stage = self.study.stages[name]
        config, start = self.config(stage['config'], stage.get('overrides')), \
            self.start(stage.get('start'))
        arguments = self._placed(stage.get('arguments'))
        inputs = dict(call=stage['call'], config=config.to_dict(), arguments=arguments,
                      start=start and start.digests())
        others = {other: self.results[other] for other in sorted(
            self.study.reads(name) - {stage.get('start')})}
        if others:
            inputs.update(reads=others)
        return self.stage(name, inputs, lambda folder: import_function(stage['call'])(
            Call(config, start, folder, self.seed, arguments)))

    def _row(self, name: str) -> dict[str, Any]:
        row = self.study.rows[name]
        return self.evaluate(f'evaluate-{name}', self.config(row['config'], row.get('overrides')),
                             self.start(row['weights']), self.study.measures,
                             self.study.input_shape)


def run_study(path: str, net: str, seed: int, options: StudyOptions, say: Say) -> dict[str, Any]:
    """Run one network and seed of a study; see :class:`StudyPipeline`."""
    return StudyPipeline(Study(path, options.rows), net, seed, options, say).run()

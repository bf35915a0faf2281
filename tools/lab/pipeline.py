"""Train, slim and evaluate as recorded stages: what studies and cross-validations are made of."""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner, find_latest_checkpoint
from mmengine.utils import ManagerMeta, ManagerMixin
from torch import nn

from mmkcr.apis.slim_files import slim_files
from mmkcr.cli.launch import one_run, resume_latest
from mmkcr.core import count_params
from mmkcr.core.file_names import STRUCTURE, SUBNET
from mmkcr.core.io import file_sha256
from mmkcr.engine.build import build_model, default_shape, load_config, load_weights, set_structure
from mmkcr.models.counting import count_macs
from mmkcr.models.tasks import search_space
from .jobs import Say
from .stages import run_stage

#: What is kept of a training's log: name in the result, name in the message hub.
CURVES = dict(top1='val/accuracy/top1', kc='val/kernel/kc', temperature='train/temperature',
              macs='train/macs', kept='train/kept')
#: Takes the trained model and its config; returns numbers.
Measure = Callable[[nn.Module, Config], Mapping[str, float]]


class SayHook(Hook):
    """Tells how far a training is.

    Args:
        say (Callable): Takes epochs done, epochs in all and the last metrics.
    """

    def __init__(self, say: Callable[[int, int, Mapping[str, float]], None]) -> None:
        self.say, self.metrics = say, {}

    def after_train_epoch(self, runner: Runner) -> None:
        """Tell."""
        self.say(runner.epoch + 1, runner.max_epochs, self.metrics)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Keep the metrics for the next time."""
        self.metrics = metrics or {}


class Start(NamedTuple):
    """What a training begins with.

    Args:
        weights (str, optional): Checkpoint; None for a start from scratch.
        structure (str, optional): Structure file. Defaults to None: the
            backbone as the config has it.
    """

    weights: str | None
    structure: str | None = None

    @classmethod
    def of_folder(cls, folder: Path) -> 'Start':
        """The two files that slimming writes."""
        return cls(str(folder / SUBNET), str(folder / STRUCTURE))

    def digests(self) -> list:
        """Of the files' contents."""
        return [file_sha256(file) for file in (self.structure, self.weights) if file]


class StagedPipeline:
    """Stages of one network with one seed, each in ``<folder>/<stage>`` and run once.

    A second pipeline with the same settings reuses what is finished and goes
    on where one was stopped (:func:`~lab.stages.run_stage`).

    Args:
        name (str): For the display.
        seed (int): Of everything random.
        folder (str | Path): For all stages.
        say (Callable): See :data:`~lab.jobs.Say`. Defaults to silence.
    """

    def __init__(self, name: str, seed: int, folder: Path, say: Say = lambda *_: None) -> None:
        self.name, self.seed, self.folder, self.say = name, seed, Path(folder), say

    def train(self, stage: str, config: Config, start: Start | None = None,
              curves: Mapping[str, str] = CURVES) -> dict[str, Any]:
        """Train a config.

        Args:
            stage (str): Name of the stage.
            config (Config): Complete config of a run, with its seed.
            start (Start, optional): Weights, and structure of the backbone.
            curves (dict[str, str]): As :data:`CURVES`.

        Returns:
            dict: ``checkpoint``, ``epochs``, ``seconds``, ``curves`` and ``metrics`` of the last
            validation.
        """
        inputs = dict(config=config.to_dict(), start=start and start.digests())
        if start is not None:
            config.load_from = start.weights
            if start.structure is not None:
                set_structure(config, start.structure)

        def work(folder: Path) -> dict[str, Any]:
            began = time.perf_counter()
            config.work_dir, config.launcher = str(folder), 'none'
            config.experiment_name = hashlib.sha256(str(folder.resolve()).encode()
                                                    ).hexdigest()[:16]
            resume_latest(config)
            hook = SayHook(lambda *news: self.say(self.name, stage, *news))
            with fresh_instances(), one_run(config, hook) as runner:
                runner.train()
                scalars = runner.message_hub.log_scalars
                return dict(checkpoint=find_latest_checkpoint(folder), epochs=runner.max_epochs,
                            seconds=round(time.perf_counter() - began, 1),
                            curves=_curves(runner, curves),
                            metrics={name.removeprefix('val/'): float(buffer.current())
                                     for name, buffer in scalars.items()
                                     if name.startswith('val/') and not name.endswith('time')})

        return self.stage(stage, inputs, work)

    def slim(self, stage: str, config: Path, checkpoint: str, target: Any, divisor: int,
             options: Mapping[str, Any] | None = None,
             shape: Sequence[int] | None = None) -> dict[str, Any]:
        """Slim a trained supernet.

        Args:
            stage (str): Name of the stage; its folder is a :class:`Start`.
            config (Path): The search's.
            checkpoint (str): The search's.
            target (float | str): See :func:`mmkcr.apis.slim`.
            divisor (int): See :func:`mmkcr.apis.slim`.
            options (dict, optional): Config entries to overwrite.
            shape (Sequence[int], optional): (C, H, W) that MACs are counted for.

        Returns:
            dict: ``scores`` and ``kept`` by site, ``macs``, ``params``,
            ``digests``.
        """
        def work(folder: Path) -> dict[str, Any]:
            structure = slim_files(config, checkpoint, target, divisor, shape, folder,
                                   options=options).structure
            model = build_model(load_config(config, options))
            load_weights(model, checkpoint)
            scores = {site: gate.scores().tolist()
                      for site, gate in search_space(model).gates().items()}
            return dict(scores=scores, macs=structure.macs, params=structure.params,
                        kept={name: len(site.kept) for name, site in structure.sites.items()},
                        digests=Start.of_folder(folder).digests())

        inputs = dict(checkpoint=file_sha256(checkpoint), target=target, divisor=divisor,
                      options=options, shape=shape)
        return self.stage(stage, inputs, work)

    def evaluate(self, stage: str, config: Config, start: Start,
                 measures: Mapping[str, Measure] | None = None,
                 shape: Sequence[int] | None = None) -> dict[str, Any]:
        """Test a config, and measure the trained model.

        Args:
            stage (str): Name of the stage.
            config (Config): As one deploys it.
            start (Start): Weights and structure.
            measures (Mapping[str, Callable], optional): By name.
            shape (Sequence[int], optional): (C, H, W) that MACs are counted
                for. Defaults to :func:`~mmkcr.engine.build.default_shape`.

        Returns:
            dict: ``params``, ``macs``, ``input_shape``, ``metrics`` of the test
            and the numbers of every measure under its name.
        """
        measures = measures or {}
        inputs = dict(config=config.to_dict(), start=start.digests(), measures=list(measures),
                      shape=shape)
        config, model = deployed(config, start)
        config.load_from = start.weights

        def work(folder: Path) -> dict[str, Any]:
            counted = tuple(shape or default_shape(config, model))
            config.work_dir = str(folder)
            runner = Runner.from_cfg(config)
            tested = {key: float(value) for key, value in runner.test().items()}
            return dict(params=count_params(model), macs=count_macs(model, counted),
                        input_shape=list(counted), metrics=tested,
                        **{name: dict(measure(runner.model, config))
                           for name, measure in measures.items()})

        return self.stage(stage, inputs, work)

    def stage(self, stage: str, inputs: Mapping[str, Any],
              work: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """Run anything as a stage, see :func:`~lab.stages.run_stage`."""
        result = run_stage(self.folder / stage, dict(inputs, seed=self.seed), work)
        epochs = result.get('epochs', 0)
        self.say(self.name, stage, epochs, epochs, None)
        return result


@contextlib.contextmanager
def fresh_instances() -> Iterator[None]:
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


def deployed(config: Config, start: Start) -> tuple[Config, nn.Module]:
    """Config and model (random weights) as one deploys them.

    Args:
        config (Config): Changed in place.
        start (Start): Gives the structure.
    """
    if start.structure is not None:
        set_structure(config, start.structure)
    return config, build_model(config)


def _curves(runner: Runner, wanted: Mapping[str, str]) -> dict[str, Any]:
    """What was logged once an epoch or a validation, resumed runs included."""
    hub, curves = runner.message_hub, {}
    for name, key in wanted.items():
        if key in hub.log_scalars:
            values = [float(value) for value in hub.get_scalar(key).data[0]]
            step = max(1, len(values) // runner.max_epochs)
            often = key.startswith('train/') and step > 1
            curves[name] = values[step - 1::step] if often else values
    return curves

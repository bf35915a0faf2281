"""Dense tasks on digit scenes, dense against slimmed; see ``tools/benchmarks/digit_scenes.py``.

A detector and a segmentor start from one backbone that was trained on the
digits. The dense one is trained for as long as search and training of the
slimmed one take together, with the ordinary configs and recorded stages
(:mod:`lab.pipeline`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import nn

from mmkcr.apis.slim_files import STRUCTURE
from mmkcr.deploy.latency import measure_pair
from mmkcr.engine.build import build_model, default_shape, file_sha256, load_config
from mmkcr.engine.schedule import stretch_schedule
from mmkcr.models.counting import count_macs
from mmkcr.models.tasks import find_backbone
from .jobs import Say
from .pipeline import StagedPipeline, Start, deployed
from .run_settings import move_data, prepare_run

BACKBONE = 'kcr/digits/kcr-dense_swin-mini_anywhere_1xb64_digits.py'
#: Configs of a task by stage.
TASKS = dict(
    detection='kcr/detection/kcr-mask-rcnn_swin-mini_{}_1xb8_digit-scenes.py',
    segmentation='kcr/segmentation/kcr-upernet_swin-mini_{}_1xb8_digit-scenes.py')
#: What the configs name as result, by the factor of the schedules.
EXPECTED = {1.: 'expected', 0.25: 'expected_short'}
CURVES = dict(box_ap='val/coco/bbox_mAP', mask_ap='val/coco/segm_mAP', miou='val/mIoU',
              macs='train/macs', kept='train/kept')


@dataclass(frozen=True)
class ScenesOptions:
    """What is run.

    Args:
        work_dir (str): Folder for everything that is written.
        configs (str): Folder with this project's configs.
        data_root (str): Digits, as tools/dataset_converters/digits.py writes
            them. Defaults to ``'data/digits'``.
        backbone (str, optional): Checkpoint of a classifier of the digits to
            start from. Defaults to None: one is trained.
        seed (int): Of everything random. Defaults to 0.
        target_macs (float | str): Of the backbone. Defaults to 0.7.
        divisor (int): See :func:`mmkcr.apis.slim`. Defaults to 8.
        factor (float): Schedules on the scenes are stretched by it. Defaults
            to 1.
    """

    work_dir: str
    configs: str
    data_root: str = 'data/digits'
    backbone: str | None = None
    seed: int = 0
    target_macs: Any = 0.7
    divisor: int = 8
    factor: float = 1.


class ScenesPipeline(StagedPipeline):
    """The stages of one task.

    Args:
        task (str): Key of :data:`TASKS`, or ``'backbone'``.
        options (ScenesOptions): What is run.
        say (Callable): See :data:`~lab.jobs.Say`. Defaults to silence.
    """

    def __init__(self, task: str, options: ScenesOptions, say: Say = lambda *_: None) -> None:
        super().__init__(task, options.seed, Path(options.work_dir) / task, say)
        self.task, self.options = task, options

    def train_backbone(self) -> str:
        """Train the classifier of the digits, unless one is given; its checkpoint."""
        if self.options.backbone is not None:
            return self.options.backbone
        config = load_config(Path(self.options.configs) / BACKBONE)
        move_data(config._cfg_dict, 'data/digits', self.options.data_root)
        prepare_run(config, self.seed)
        return self.train('dense', config)['checkpoint']

    def run(self, backbone: str) -> dict[str, Any]:
        """Run what is not finished.

        Args:
            backbone (str): Checkpoint to start from.

        Returns:
            dict: ``task``, ``trainings``, ``slim`` and numbers of the rows
            ``dense`` and ``slim``.
        """
        trainings = {stage: self.train(stage, self.config(stage, backbone), curves=CURVES)
                     for stage in ('dense', 'search')}
        slim = self.slim('slim', self.config_file('search'), trainings['search']['checkpoint'],
                         self.options.target_macs, self.options.divisor)
        trainings['retrain'] = self.train('retrain', self.config('slim'),
                                          Start.of_folder(self.folder / 'slim'), CURVES)
        rows = {row: self.evaluate(f'evaluate-{row}', self.config(row),
                                   Start(trainings[stage]['checkpoint'], self.structure(row)),
                                   dict(backbone=backbone_macs))
                for row, stage in (('dense', 'dense'), ('slim', 'retrain'))}
        return dict(task=self.task, trainings=trainings, slim=slim, rows=rows)

    def config_file(self, stage: str) -> Path:
        """Path of the config of 'dense', 'search' or 'slim'."""
        return Path(self.options.configs) / TASKS[self.task].format(stage)

    def structure(self, row: str) -> str | None:
        """The structure file of a row of the table."""
        return str(self.folder / 'slim' / STRUCTURE) if row == 'slim' else None

    def config(self, stage: str, backbone: str | None = None) -> Config:
        """A config as it is run.

        Args:
            stage (str): 'dense', 'search' or 'slim'.
            backbone (str, optional): Checkpoint of ``init_cfg``. Defaults to
                None: no initial weights but those of ``load_from``.
        """
        config = load_config(self.config_file(stage))
        move_data(config._cfg_dict, 'data/digits', self.options.data_root)
        config.load_from, config.randomness.seed = None, self.seed
        for name in ('train', 'val', 'test'):
            # a scene takes milliseconds to load: no worker pays off
            config[f'{name}_dataloader'].update(num_workers=0, persistent_workers=False)
        model = config.model.get('architecture', config.model)
        model.backbone.init_cfg = None if backbone is None else dict(
            type='Pretrained', checkpoint=backbone)
        if backbone is not None:
            config.backbone_sha256 = file_sha256(backbone)
        return shorten(config, self.options.factor)

    def latency(self) -> dict[str, Any]:
        """Milliseconds an image of the dense and the slimmed model, in turns."""
        pair = [deployed(self.config(row), Start(None, self.structure(row)))
                for row in ('dense', 'slim')]
        (config, dense), (_, slim) = pair
        images = torch.randn(8, *default_shape(config, dense))

        def work(_: Path) -> dict[str, Any]:
            timing = measure_pair(dense, slim, images, repeats=30, warmup=3)
            dense_ms, slim_ms = (1e3 * seconds / len(images) for seconds in timing.seconds)
            return dict(dense=dense_ms, slim=slim_ms, ratio=timing.ratio,
                        ratio_quartiles=list(timing.quartiles))

        inputs = dict(structure=file_sha256(self.structure('slim')),
                      threads=torch.get_num_threads())
        return self.stage('latency', inputs, work)


def run_backbone(options: ScenesOptions, say: Say) -> dict[str, str]:
    """The job of the classifier."""
    return dict(checkpoint=ScenesPipeline('backbone', options, say).train_backbone())


def run_task(task: str, options: ScenesOptions, backbone: str, say: Say) -> dict[str, Any]:
    """The job of one task."""
    return ScenesPipeline(task, options, say).run(backbone)


def backbone_macs(model: nn.Module, config: Config) -> Mapping[str, float]:
    """MACs of the backbone, and of the whole model, at the size of the scenes."""
    shape = default_shape(config, build_model(config))
    return dict(macs=count_macs(find_backbone(model), shape), whole=count_macs(model, shape))


def shorten(config: Config, factor: float) -> Config:
    """Stretch a schedule by a factor, and validate at its end only.

    Args:
        config (Config): Counting epochs or iterations; changed in place.
        factor (float): Above 0.

    Returns:
        Config: The same.
    """
    stretch_schedule(config, factor)
    key = 'max_epochs' if 'max_epochs' in config.train_cfg else 'max_iters'
    config.train_cfg.val_interval = config.train_cfg[key]
    config.default_hooks.checkpoint.update(
        interval=1 if key == 'max_epochs' else 100, max_keep_ckpts=1)
    return config

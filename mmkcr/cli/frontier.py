"""What makes this network faster on this machine? Each way alone and in pairs, measured.

The ways: fewer MACs, the multiply-accumulate operations (layers cut without training, as by `mmkcr
compress`), int8, half precision and a smaller input. Every network is exported and timed in turns
with the dense one; its outputs are compared on images that nothing was fitted to. It ends with a
recommendation, and writes frontier.csv, frontier.md with pictures, and the best networks as ONNX
files.

A call that was killed goes on where it was if it is repeated.

Examples:
    mmkcr frontier CONFIG CHECKPOINT --calibration IMAGES --out frontier
    mmkcr frontier timm::vit_small_patch16_224 CHECKPOINT --calibration IMAGES
    mmkcr frontier CONFIG CHECKPOINT --keep 98% --evaluate --runtime openvino --threads 1 2
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from mmkcr.apis.file_options import FileOptions
from mmkcr.apis.levers import FrontierOptions, measure_frontier
from mmkcr.apis.networks import is_named, load_with_images, named_folder
from mmkcr.cli.compress_job import read_gigabytes
from mmkcr.cli.fields import Built, argument, check_named, read_shape, require_checkpoint, runs
from mmkcr.closed_form.options import SCOPES
from mmkcr.core.file_names import CONFIG
from mmkcr.deploy.int8 import QUANTIZERS


@dataclass(frozen=True, kw_only=True)
class FrontierJob(Built, FrontierOptions, FileOptions):
    """Arguments of ``mmkcr frontier``.

    Args:
        images (int, optional): Images at most; a quarter of them, 64 at most, only compares
            outputs. Defaults to None: 2276.
        out (str | Path, optional): Folder to write to. Defaults to None: the folder ``frontier`` in
            the work directory of the config, or in ``work_dirs/<config name>``.

    Raises:
        ValueError: ``metric`` without ``evaluate``; see :class:`FrontierOptions`.
    """

    offers: ClassVar = dict(
        config=dict(positional=True), checkpoint=dict(positional=True, nargs='?'), pretrained={},
        calibration=dict(metavar='FOLDER'), images={}, keep=dict(type=str, metavar='SHARE'),
        targets=dict(nargs='*', type=str, metavar='TARGET'),
        sides=dict(nargs='*', type=float, metavar='SHARE'),
        scopes=dict(nargs='+', type=str, choices=SCOPES),
        runtime=dict(nargs='+', type=str, choices=sorted(QUANTIZERS)),
        threads=dict(nargs='+', type=int), memory=dict(type=read_gigabytes, metavar='GB'), seed={},
        out=dict(type=str, metavar='DIR'))
    evaluate: bool = argument('quality is the metric on the test set, not agreement with the dense '
                              'network', False)
    metric: str | None = argument('of --evaluate (the one that ends with mIoU, bbox_mAP or top1, '
                                  'else the first)')

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric is not None and not self.evaluate:
            raise ValueError('expected `--metric` with `--evaluate`, found it alone')


def judge(job: FrontierJob, task: Any, folder: Path, file: Path, runtime: str,
          cut: Path | None) -> tuple[str, float]:
    """Name and value of the metric of a file on the test set.

    Args:
        job (FrontierJob): Arguments of the command: checkpoint and metric.
        task (CompressTask): The dense network.
        folder (Path): Work directory of the test.
        file (Path): The ONNX file.
        runtime (str): One of :data:`~mmkcr.deploy.int8.QUANTIZERS`.
        cut (Path | None): Folder of the cut network that the file is of; None for the dense one.

    Raises:
        ValueError: The test has no metric of the name that was asked for.
    """
    from mmkcr.cli.compress_config import evaluate
    from mmkcr.engine.build import load_config
    config, checkpoint = (load_config(cut / CONFIG), None) if cut else (task.config, job.checkpoint)
    metrics = evaluate(config, checkpoint, str(folder), file, runtime)
    if job.metric is not None and job.metric not in metrics:
        raise ValueError(f'expected `--metric` of {", ".join(metrics)}, found `{job.metric}`')
    usual = [name for name in metrics if name.endswith(('mIoU', 'bbox_mAP', 'top1'))]
    name = job.metric or [*usual, *metrics][0]
    return name, float(metrics[name])


def read_named(job: FrontierJob) -> tuple[Any, ...]:
    """Arguments of :func:`measure_frontier` for a network of timm or transformers.

    Raises:
        ValueError: The whole model is to be cut, or an option needs a config.
    """
    check_named(job, ('cfg_options', 'evaluate', 'metric'))
    if 'model' in job.scopes:
        raise ValueError('expected a config of mmpretrain, mmdet or mmseg for `--scopes model`, '
                         f'found `{job.config}`')
    network, images = load_with_images(
        job.config, job.checkpoint, job.calibration, job.most_images, seed=job.seed,
        shape=read_shape(job), pretrained=job.pretrained)
    folder = Path(job.out or named_folder(job.config) / 'frontier')
    return network.model, images, replace(job, input_shape=network.shape), folder


def read_config(job: FrontierJob) -> tuple[Any, ...]:
    """Arguments of :func:`measure_frontier` for the network of a config."""
    from mmkcr.apis.compress_files import build_task, task_outputs
    from mmkcr.engine.build import run_folder
    require_checkpoint(job)
    task = build_task(replace(job, input_shape=read_shape(job)))
    folder = Path(job.out) if job.out else run_folder(task.config, job.config) / 'frontier'
    task.model.cfg = task.config  # so that cut networks are written with a config
    judged = partial(judge, job, task, folder / 'evaluate') if job.evaluate else None
    return task.model, task.batches, task.options, folder, task_outputs, judged


@runs(FrontierJob)
def main(job: FrontierJob) -> None:
    """Measure, write and print."""
    result = measure_frontier(*(read_named(job) if is_named(job.config) else read_config(job)))
    print(f'{result}\nWrote {result.folder / "frontier.md"} and the best networks in '
          f'{result.folder / "networks"}')

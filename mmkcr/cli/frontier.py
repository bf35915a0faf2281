"""What makes this network faster on this machine? Each way alone and in pairs, measured.

The ways: fewer MACs (layers cut without training, as by `mmkcr compress`), int8, half precision and
a smaller input. Every network is exported and timed in turns with the dense one; its outputs are
compared on images that nothing was fitted to. It ends with a recommendation, and writes
frontier.csv, frontier.md with pictures, and the best networks as ONNX files.

A call that was killed goes on where it was if it is repeated.

Examples:
    mmkcr frontier CONFIG CHECKPOINT --calibration IMAGES --out frontier
    mmkcr frontier CONFIG CHECKPOINT --keep 98% --evaluate --runtime openvino --threads 1 2
"""

from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path

from mmkcr.apis.compress_files import CompressTask, task_outputs
from mmkcr.apis.levers import frontier
from mmkcr.apis.saved import CONFIG
from mmkcr.cli.compress import evaluate
from mmkcr.cli.fields import Configured, Shaped, Trusting, argument, given_shape, runs
from mmkcr.closed_form.options import SCOPES
from mmkcr.core.budget import parse_target
from mmkcr.deploy.int8 import QUANTIZERS
from mmkcr.engine.build import load_config, run_folder


@dataclass(frozen=True)
class FrontierJob(Configured, Shaped, Trusting):
    """Arguments of ``mmkcr frontier``."""

    config: str = argument('config of a dense model, a file or library::path', positional=True)
    checkpoint: str = argument('its weights', positional=True)
    keep: str = argument('share of the dense quality that must stay (%(default)s)', '95%',
                         metavar='SHARE')
    calibration: str | None = argument(
        'folder of images (default: the training set of the config)', metavar='FOLDER')
    images: int | None = argument('images at most (as many as cuts need, 32 to 512)')
    targets: list[str] = argument('MACs of the cuts (%(default)s)', ['80%', '60%', '40%'],
                                  metavar='TARGET')
    sides: list[float] = argument('sides of smaller inputs, as shares (%(default)s)', [0.75, 0.5],
                                  metavar='SHARE')
    scope: list[str] = argument('what is cut: the backbone, or the whole detector or segmentor '
                                '(%(default)s)', ['backbone'], choices=SCOPES)
    runtime: list[str] | None = argument('(those that are installed with their quantiser)',
                                         choices=sorted(QUANTIZERS))
    threads: list[int] = argument('(%(default)s)', [1])
    evaluate: bool = argument('quality is the metric on the test set, not agreement with the dense '
                              'network', False)
    metric: str | None = argument('of --evaluate (the one that ends with mIoU, bbox_mAP or top1, '
                                  'else the first)')
    memory: float | None = argument('that cutting may take (half of what is free)', metavar='GB')
    seed: int = argument('of what is drawn (%(default)s)', 0)
    out: str | None = argument('folder to write to (work_dirs/<config name>/frontier)',
                               metavar='DIR')


def judge(job: FrontierJob, task: CompressTask, folder: Path, file: Path, runtime: str,
          cut: Path | None) -> tuple[str, float]:
    """Name and value of the metric of a file on the test set."""
    config, checkpoint = (load_config(cut / CONFIG), None) if cut else (task.config, job.checkpoint)
    metrics = {name: value for name, value in evaluate(
        config, checkpoint, str(folder), file, runtime).items() if isinstance(value, Real)}
    if job.metric is not None and job.metric not in metrics:
        raise ValueError(f'expected `--metric` of {", ".join(metrics)}, found `{job.metric}`')
    usual = [name for name in metrics if name.endswith(('mIoU', 'bbox_mAP', 'top1'))]
    name = job.metric or [*usual, *metrics][0]
    return name, float(metrics[name])


@runs(FrontierJob)
def main(job: FrontierJob) -> None:
    """Measure, write and print."""
    keep = parse_target(job.keep, 10**6) / 10**6
    task = CompressTask(job.config, job.checkpoint, job.calibration, job.images, given_shape(job),
                        None, None, job.seed, 'cpu', job.cfg_options)
    folder = Path(job.out) if job.out else run_folder(task.config, job.config) / 'frontier'
    task.model.cfg = task.config  # so that cut networks are written with a config
    print(frontier(
        task.model, task.batches, keep, folder, job.targets, job.sides, job.scope, job.runtime,
        job.threads, task.input_shape,
        partial(judge, job, task, folder / 'evaluate') if job.evaluate else None,
        forward=task_outputs, logits=task.classifies, part=task.part, seed=job.seed,
        memory=None if job.memory is None else int(job.memory * 2**30)))
    print(f'Wrote {folder / "frontier.md"} and the best networks in {folder / "networks"}')

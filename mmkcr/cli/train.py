"""Train a model: a search, a retraining, or any config of mmpretrain, mmdet or mmseg.

Examples:
    mmkcr train CONFIG
    mmkcr train CONFIG --resume --cfg-options train_dataloader.batch_size=32
    bash tools/dist_train.sh CONFIG 8 --amp
"""

from dataclasses import dataclass

from mmengine.config import Config

from mmkcr.cli.fields import Running, argument, runs
from mmkcr.cli.launch import (
    apply_running,
    resume_latest,
    set_dataloader_defaults,
    start_training,
)
from mmkcr.engine.build import load_config, take_options


@dataclass(frozen=True)
class TrainJob(Running):
    """Arguments of ``mmkcr train``."""

    config: str = argument('config of the training', positional=True)
    resume: str | None = argument(
        'go on from a checkpoint, without a value from the latest one of the work directory, or '
        'begin if there is none', nargs='?', const='auto', metavar='CHECKPOINT')
    no_validate: bool = argument('do not evaluate during training', False)
    auto_scale_lr: bool = argument(
        'scale the learning rate by the actual over the original batch size', False)
    no_persistent_workers: bool = argument('start data-loading workers anew in every epoch', False)


def training_config(config: Config, args: TrainJob) -> Config:
    """Put the arguments into the config, in place.

    Raises:
        ValueError: Mixed precision without a GPU, or a rate to scale without a base batch size.
    """
    if args.no_validate:
        config.val_cfg = config.val_dataloader = config.val_evaluator = None
    apply_running(config, args)
    wrapper = config.get('optim_wrapper') or {}
    # one, or those of a search's two optimizers
    for part in [wrapper, *wrapper.values()] if args.amp else ():
        if isinstance(part, dict) and 'optimizer' in part:
            part.type = 'AmpOptimWrapper'
            part.setdefault('loss_scale', 'dynamic')
    if args.auto_scale_lr:
        if 'base_batch_size' not in (config.get('auto_scale_lr') or {}):
            raise ValueError('expected `auto_scale_lr = dict(base_batch_size=...)` in the config '
                             'for `--auto-scale-lr`, found none')
        config.auto_scale_lr.enable = True
    take_options(config, args.cfg_options or {})
    if args.resume == 'auto':
        resume_latest(config)
    elif args.resume is not None:
        config.resume, config.load_from = True, args.resume
    set_dataloader_defaults(
        config, ('train_dataloader', 'val_dataloader', 'test_dataloader'),
        pin_memory=not args.no_pin_memory, persistent_workers=not args.no_persistent_workers)
    return config


@runs(TrainJob, quiet=False)
def main(args: TrainJob) -> None:
    """Check, build and train."""
    start_training(training_config(load_config(args.config, compressed=False), args))

"""Train a model: a search, a retraining, or any config of mmpretrain, mmdet or mmseg.

Examples:
    python tools/train.py CONFIG
    python tools/train.py CONFIG --resume --cfg-options train_dataloader.batch_size=32
    bash tools/dist_train.sh CONFIG 8 --amp
"""

from typing import Any, Optional, Sequence

from mmengine.config import Config

from mmkcr.apis.build import load_config, take_options
from mmkcr.apis.cli import Parser, command
from mmkcr.apis.launch import (
    add_common_arguments,
    apply_common_arguments,
    optim_wrapper_parts,
    resume_latest,
    set_dataloader_defaults,
    start_training,
)


def make_parser(doc: str = __doc__) -> Parser:
    """The command line.

    Args:
        doc (str): Description and examples.
    """
    parser = Parser(doc)
    parser.add_argument('config', help='config of the training')
    parser.add_argument('--resume', nargs='?', const='auto', metavar='CHECKPOINT',
                        help='go on from a checkpoint, without a value from the latest one of the '
                        'work directory, or begin if there is none')
    parser.add_argument('--no-validate', action='store_true',
                        help='do not evaluate during training')
    parser.add_argument('--auto-scale-lr', action='store_true',
                        help='scale the learning rate by the actual over the original batch size')
    parser.add_argument('--no-persistent-workers', action='store_true',
                        help='start data-loading workers anew in every epoch')
    add_common_arguments(parser)
    return parser


def merge_args(config: Config, args: Any) -> Config:
    """Put the arguments into the config.

    Args:
        config (Config): Changed in place.
        args (Namespace): Of :func:`make_parser`.

    Raises:
        ValueError: An argument does not fit the config or the machine.
    """
    if args.no_validate:
        config.val_cfg = config.val_dataloader = config.val_evaluator = None
    apply_common_arguments(config, args)
    for part in optim_wrapper_parts(config) if args.amp else ():
        part.type = 'AmpOptimWrapper'
        part.setdefault('loss_scale', 'dynamic')
    if args.auto_scale_lr:
        if 'base_batch_size' not in (config.get('auto_scale_lr') or {}):
            raise ValueError('expected `auto_scale_lr = dict(base_batch_size=...)` in the config '
                             'for `--auto-scale-lr`, found none')
        config.auto_scale_lr.enable = True
    if args.cfg_options is not None:
        take_options(config, args.cfg_options)
    if args.resume == 'auto':
        resume_latest(config)
    elif args.resume is not None:
        config.resume, config.load_from = True, args.resume
    set_dataloader_defaults(
        config, ('train_dataloader', 'val_dataloader', 'test_dataloader'),
        pin_memory=not args.no_pin_memory, persistent_workers=not args.no_persistent_workers)
    return config


def train(args: Any) -> None:
    """Check, build and train.

    Args:
        args (Namespace): Of :func:`make_parser`.

    Raises:
        ValueError: The config has no training.
    """
    config = merge_args(load_config(args.config, compressed=False), args)
    start_training(config)


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Parse and train."""
    train(make_parser().parse_args(argv))


if __name__ == '__main__':
    main()

"""Write the few lines beside your own config that search, retrain or fine-tune a smaller model.

Your config stays as it is: the new file inherits from it and adds `compression`. Methods: kcr
(channels of the MLPs), dcs (the same, with masks on queries and keys), ofb (heads and hidden
units, pruned while it trains), dwconv (blocks whose attention becomes a convolution).

Examples:
    mmkcr init mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py --target-macs 70%
    mmkcr init my_config.py --method ofb --stage search
    mmkcr init my_config.py --method ofb --stage retrain
    mmkcr init my_config.py --stage compress
"""

from dataclasses import dataclass

from mmkcr.cli.fields import argument, runs
from mmkcr.cli.init_config import METHODS, STAGES, init_config


@dataclass(frozen=True)
class InitJob:
    """Arguments of ``mmkcr init``."""

    config: str = argument('your config, a file or library::path', positional=True)
    method: str = argument('(%(default)s)', 'kcr', choices=METHODS)
    stage: str = argument('compress: fine-tuning of what `compress` left, of no method '
                          '(%(default)s)', 'search', choices=STAGES)
    target_macs: str = argument('MACs that a search aims at: 12.6G, 450M, 0.7 or 70%% of the dense '
                                'model (%(default)s)', '70%', metavar='TARGET')
    part: str | None = argument('what the target is about (backbone of a detector or segmentor, '
                                'else model)', choices=('model', 'backbone'))
    out: str | None = argument('file to write (<method>-<stage>_<name>.py)', metavar='FILE')
    search: str | None = argument('of the search that a retraining follows '
                                  '(<method>-search_<name>)', metavar='NAME')
    force: bool = argument('overwrite a file that is there', False)


@runs(InitJob)
def main(args: InitJob) -> None:
    """Check the backbone, write and print."""
    path = init_config(args.config, args.method, args.stage, args.target_macs, args.out,
                       args.force, args.search, args.part)
    print(path.read_text(), end='')
    print(f'Wrote {path}')

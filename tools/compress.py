"""Compress any checkpoint in closed form: minutes, unlabelled images, nothing trained.

Writes structure.json, subnet.pth and config.py, an ordinary config of the compressed model that
train, test, inferencers and export take as it is; and sensitivity.json, what every site loses at
every size.

Examples:
    python tools/compress.py CONFIG CHECKPOINT --target-macs 60%
    python tools/compress.py mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py CHECKPOINT \\
        --target-macs 70% --calibration FOLDER --images 256 --out slim
"""

from numbers import Real
from typing import Any, Dict, Optional, Sequence

from mmengine.config import DictAction
from mmengine.runner import Runner

from mmkcr.apis.build import image_shape, load_config
from mmkcr.apis.cli import Parser, command, quiet_hosts
from mmkcr.apis.compress import DEFAULT_SITES, REFITTED
from mmkcr.apis.compress_files import CONFIG, CompressFiles, compress_files, dense_and_slim
from mmkcr.apis.launch import check_file
from mmkcr.datasets.data_check import check_data_folders
from mmkcr.visualization import format_table


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of a dense model, a file or library::path')
    parser.add_argument('checkpoint', help='its weights')
    parser.add_argument('--target-macs', required=True, metavar='TARGET',
                        help='most MACs: 12.6G, 450M, 0.6 or 60%% of the dense model; of detectors '
                        'and segmentors those of the backbone')
    parser.add_argument('--sites', nargs='+', metavar='KIND',
                        help=f'kinds of site, of {", ".join(REFITTED)} (those of '
                        f'{", ".join(DEFAULT_SITES)} that the backbone has)')
    parser.add_argument('--calibration', metavar='FOLDER',
                        help='folder of images (default: the training set of the config)')
    parser.add_argument('--images', type=int, default=512,
                        help='calibration images at most (%(default)s)')
    parser.add_argument('--batch-size', type=int, default=16, help='images (%(default)s)')
    parser.add_argument('--divisor', type=int, default=8,
                        help='sizes are multiples of it, or full (%(default)s)')
    parser.add_argument('--uniform', action='store_true',
                        help='the same share of every site instead of the best allocation')
    parser.add_argument('--part', choices=('model', 'backbone'),
                        help='whose MACs the target is about')
    parser.add_argument('--shape', type=int, nargs='+', metavar='N',
                        help='height and width of the image that MACs are counted for, or one '
                        'number for both; default: that of the config')
    parser.add_argument('--rho', type=float, default=1e-3, help='relative ridge (%(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='of what is drawn (%(default)s)')
    parser.add_argument('--device', default='cpu', help='such as cuda (%(default)s)')
    parser.add_argument('--out', metavar='DIR',
                        help='folder to write to (work_dirs/<config name>/compress)')
    parser.add_argument('--evaluate', action='store_true',
                        help='also evaluate both models on the test set')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction,
                        help='entries of the config to overwrite: key=value')
    return parser


def report(files: CompressFiles, metrics: Sequence[Dict[str, float]] = ()) -> None:
    """Print what was kept, and both models side by side."""
    structure, agreement = files.result.structure, files.result.agreement
    rows = [(name, site.total, len(site.kept), f'{len(site.kept) / site.total:.1%}',
             f'{float(files.result.profiles[name].losses[len(site.kept)]):.2g}')
            for name, site in structure.sites.items()]
    print(format_table(('site', 'units', 'kept', 'share', 'loss'), rows))
    rows = [(name, f'{dense:.4g}', f'{slim:.4g}', f'{slim / dense:.1%}')
            for name, dense, slim in dense_and_slim(files)]
    for dense, slim in zip(*[iter(metrics)] * 2):
        rows += [(name, f'{dense[name]:.4g}', f'{slim[name]:.4g}', '')
                 for name in dense if isinstance(dense[name], Real)]  # mmseg gives NumPy's
    print(format_table(('', 'dense', 'slim', 'share'), rows))
    same = f', {agreement["top1"]:.1%} with the same class' if 'top1' in agreement else ''
    print(f'Outputs on held-out calibration images differ by {agreement["error"]:.1%} of their '
          f'size{same}.')
    height, width = structure.macs['input_shape'][1:]
    print(f'MACs of the {structure.macs.get("part", "model")} for one image of {height} x {width}.')
    print(f'Wrote {files.folder / CONFIG} with structure and weights beside it')


def evaluate(config: Any, checkpoint: Optional[str], work_dir: str) -> Dict[str, float]:
    """Metrics of a model on the test set of its config."""
    config.work_dir, config.resume = work_dir, False
    config.load_from = checkpoint or config.load_from
    return Runner.from_cfg(config).test()


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Compress, write and print."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    check_file(args.checkpoint, 'a checkpoint')
    fields = ('train_dataloader', ) if args.calibration is None else ()
    fields += ('test_dataloader', ) if args.evaluate else ()
    check_data_folders(load_config(args.config, args.cfg_options), fields)
    files = compress_files(
        args.config, args.checkpoint, args.target_macs, args.sites, args.calibration, args.images,
        args.batch_size, image_shape(args.shape) if args.shape else None, args.part, args.out,
        args.seed, args.device, args.cfg_options, divisor=args.divisor, uniform=args.uniform,
        rho=args.rho)
    metrics = []
    if args.evaluate:
        work_dir = str(files.folder / 'evaluate')
        metrics = [evaluate(load_config(args.config, args.cfg_options), args.checkpoint, work_dir),
                   evaluate(load_config(files.folder / CONFIG), None, work_dir)]
    report(files, metrics)


if __name__ == '__main__':
    main()

"""Export a subnet, or any model, to ONNX and compare it with PyTorch.

A classifier gives logits; --backbone exports the feature maps of the backbone
alone. The batch is dynamic, and so are height and width where the backbone
allows: ViT always, Swin with pad_small_map=True. Outputs are compared in
ONNX Runtime at several batch sizes and image sizes; a file that differs is
not written.

Example:
    python tools/deployment/export_onnx.py CONFIG CHECKPOINT --out subnet.onnx
"""

import contextlib
import sys
from pathlib import Path
from typing import Optional, Sequence

import torch
from mmengine.config import DictAction

from mmkcr.apis.build import build_model, default_shape, image_shape, load_config, load_weights
from mmkcr.apis.cli import Parser, add_trust_argument, command, quiet_hosts
from mmkcr.apis.export import export_onnx
from mmkcr.models.utils import find_task
from mmkcr.visualization import format_table


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of a deployment, retraining or dense model')
    parser.add_argument('checkpoint', nargs='?', help='its checkpoint; default: random weights')
    parser.add_argument('--out', metavar='FILE', help='work_dirs/<config name>/<config name>.onnx')
    parser.add_argument('--backbone', action='store_true', help='the feature maps only')
    parser.add_argument('--shape', type=int, nargs='+', metavar='N',
                        help="height and width, or one number for both; default: the config's")
    parser.add_argument('--static-size', action='store_true', help='fix height and width')
    parser.add_argument('--positions', choices=('resized', 'baked'), default='resized',
                        help="a ViT's position embedding: resized in the graph, or stored at the "
                        'size of the export, which fixes height and width (%(default)s)')
    parser.add_argument('--tolerance', type=float, default=1e-4,
                        help='largest difference, relative to the largest output (%(default)g)')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction,
                        help='entries of the config to overwrite: key=value')
    add_trust_argument(parser)
    return parser


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Export, compare and print."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    config = load_config(args.config, args.cfg_options)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(sys.stderr):
        model = build_model(config)
        if args.checkpoint:
            load_weights(model, args.checkpoint)
        shape = image_shape(args.shape) if args.shape else default_shape(config, model)
        if args.backbone:
            model = find_task(model).backbone
        name = Path(args.config).stem
        report = export_onnx(model, args.out or f'work_dirs/{name}/{name}.onnx', shape,
                             not args.static_size, tolerance=args.tolerance,
                             bake=args.positions == 'baked')
    print(format_table(('input', 'difference from PyTorch'),
                       [('x'.join(map(str, key)), f'{error:.2g}')
                        for key, error in report.errors.items()]))
    if not args.checkpoint:
        print('notice: no checkpoint was given, the weights are random')
    if report.notice:
        print(f'notice: {report.notice}')
    size = 'dynamic' if report.dynamic_size else f'{shape[1]} x {shape[2]}'
    print(f'{report.path}: dynamic batch, height and width {size}')


if __name__ == '__main__':
    main()

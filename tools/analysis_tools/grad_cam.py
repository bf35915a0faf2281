"""Class activation maps (Grad-CAM) of trained models, side by side (DCS figure 4).

Which parts of an image speak for its class: maps of the last layer with positions, by the
library grad-cam (`pip install grad-cam`). Writes grad_cam.png: images, then a row a model.

Examples:
    python tools/analysis_tools/grad_cam.py DENSE.py dense.pth DCS.py dcs.pth --names dense DCS
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.attention_plots import plot_maps
from lab.grad_cam import grad_cam
from lab.side_by_side import add_model_arguments, pictures, read_models, spread_loader
from mmkcr.cli.command import Parser, command, quiet_hosts


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    add_model_arguments(parser)
    parser.add_argument('--method', default='GradCAM',
                        help='class of the library, such as GradCAMPlusPlus (%(default)s)')
    parser.add_argument('--predicted', action='store_true',
                        help='maps of the predicted classes, in place of the true ones')
    return parser


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Compute and draw."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    models = read_models(args)
    loader = spread_loader(next(iter(models.values())).config, args.split, args.shown)
    batch, images = pictures(loader, args.shown)
    labels = None if args.predicted else [int(s.gt_label) for s in batch['data_samples']]
    maps = {name: list(grad_cam(trained.model, trained.model.data_preprocessor(batch)['inputs'],
                                labels, args.method)) for name, trained in models.items()}
    path = Path(args.out) / f'grad_cam.{args.format}'
    plot_maps(images, maps, path, overlay=True)
    print(f'{args.method} of {len(images)} images and {len(maps)} models: {path}')


if __name__ == '__main__':
    main()

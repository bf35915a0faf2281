"""Pictures of what a detector or segmentor sees before and after slimming.

One picture an image: boxes and masks, or class maps, of the dense model and of the slimmed one,
side by side, with the multiply-accumulates of the backbones, and with --runtime their time for
one image: in turns, on one thread and its clock.

Examples:
    python tools/demo/before_after.py \
        --dense kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes DENSE_CHECKPOINT \
        --slim kcr-mask-rcnn_swin-mini_slim_1xb8_digit-scenes SLIM_CHECKPOINT \
        --images data/digits/scenes/images/validation --count 4 --runtime onnxruntime
    python tools/demo/before_after.py --dense CONFIG CHECKPOINT --slim CONFIG CHECKPOINT \
        --structure structure.json --images street.jpg --score-thr 0.5
"""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import mmcv
import numpy as np
import torch
from matplotlib import colormaps
from mmengine.structures import PixelData
from numpy import ndarray
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.figures import saved_figure
from mmkcr.apis import count_macs, inferencer, model_config
from mmkcr.cli.command import Parser, add_trust_argument, command, quiet_hosts
from mmkcr.deploy.latency import measure_pair
from mmkcr.deploy.runtimes import RUNTIMES
from mmkcr.models.tasks import find_task
from mmkcr.visualization import show_progress

SUFFIXES = ('.png', '.jpg', '.jpeg', '.bmp')
SIDE = 512  # an image is enlarged until just not longer


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    for name, what in (('dense', 'the model before slimming'), ('slim', 'the model after it')):
        parser.add_argument(f'--{name}', nargs=2, required=True, metavar=('CONFIG', 'CHECKPOINT'),
                            help=f'{what}: config or name, and checkpoint')
    parser.add_argument('--structure', metavar='FILE',
                        help="structure file of the slimmed model (its config's)")
    parser.add_argument('--images', nargs='+', required=True, metavar='PATH',
                        help='images, or folders with images')
    parser.add_argument('--count', type=int, metavar='N', help='at most N images (all)')
    parser.add_argument('--out', default='work_dirs/demo', metavar='DIR',
                        help='folder of the pictures (%(default)s)')
    parser.add_argument('--score-thr', type=float, default=0.3,
                        help='lowest score of a box that is drawn (%(default)s)')
    parser.add_argument('--runtime', choices=RUNTIMES, help='also time the backbones')
    parser.add_argument('--repeats', type=int, default=50,
                        help='pairs that are timed (%(default)s)')
    parser.add_argument('--device', default='cpu', help='where the models run (%(default)s)')
    add_trust_argument(parser)
    return parser


def find_images(paths: Sequence[str], count: int | None) -> list[Path]:
    """Image files, those of folders in the order of their names.

    Raises:
        FileNotFoundError: A path is missing, or there is no image.
        ValueError: ``count`` is not positive.
    """
    if count is not None and count < 1:
        raise ValueError(f'expected `--count` of at least 1, found {count}')
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f'expected images at `{path}`, found nothing')
        found += sorted(path.iterdir()) if path.is_dir() else [path]
    found = [path for path in found if path.suffix.lower() in SUFFIXES]
    if not found:
        raise FileNotFoundError(f'expected images ({", ".join(SUFFIXES)}) in '
                                f'`{" ".join(paths)}`, found none')
    return found[:count]


def load(model: Sequence[str], structure: str | None, device: str) -> Any:
    """The inferencer of a model.

    Raises:
        ValueError: A model of another task than detection and segmentation.
    """
    config = model_config(model[0])
    if config.get('default_scope') not in ('mmdet', 'mmseg'):
        raise ValueError('expected a detector or a segmentor, found '
                         f'`default_scope = {config.get("default_scope")!r}` in `{model[0]}`')
    return inferencer(config, model[1], structure, device, show_progress=False)


def palette(classes: int) -> list[tuple[int, ...]]:
    """A color a class, the same in every picture."""
    colors = colormaps['tab10' if classes <= 10 else 'turbo'].resampled(max(classes, 10))
    return [tuple(round(255 * part) for part in colors(number)[:3]) for number in range(classes)]


def draw(built: Any, images: Sequence[Path], score_thr: float = 0.3,
         labels: bool = True) -> tuple[list[ndarray], tuple[int, int, int]]:
    """Images (H, W, 3) in RGB with what a model finds, and what its backbone is given."""
    options = dict(pred_score_thr=score_thr) if built.scope == 'mmdet' else dict(with_labels=labels)
    backbone, shapes, drawn = find_task(built.model).backbone, [], []
    hook = backbone.register_forward_pre_hook(
        lambda _, inputs: shapes.append(tuple(inputs[0].shape[1:])))
    meta = dict(built.model.dataset_meta)
    if not isinstance(meta.get('palette'), (list, tuple)):
        meta['palette'] = palette(len(meta['classes']))
    built.visualizer.dataset_meta = meta
    for path in show_progress(images, 'Images'):
        np.random.seed(0)  # mmdet varies the colors of masks
        found = built(str(path), return_datasamples=True)
        sample, = found['predictions'] if isinstance(found, dict) else [found]
        image = torch.from_numpy(mmcv.imread(path, channel_order='rgb'))[None]
        factor = max(1, SIDE // max(image.shape[1:3]))  # labels are of one size
        built.visualizer.add_datasample(
            path.stem, enlarge(image, factor)[0].numpy(), enlarge_sample(sample, factor),
            draw_gt=False, **options)
        drawn.append(built.visualizer.get_image())
    hook.remove()
    return drawn, shapes[0]


def titles(models: Sequence[Any], shape: tuple[int, int, int], runtime: str | None,
           repeats: int) -> list[str]:
    """MACs of the backbones, and their time.

    Args:
        models (Sequence): Inferencers, dense and slim.
        shape (tuple[int, int, int]): (C, H, W) that both are counted and timed for.
        runtime (str, optional): Of :data:`~mmkcr.deploy.runtimes.RUNTIMES`; None: not timed.
        repeats (int): Pairs.
    """
    backbones = [find_task(built.model).backbone for built in models]
    macs = [count_macs(backbone, shape) for backbone in backbones]
    found = [f'dense: {macs[0] / 1e6:.1f} M MACs',
             f'slim: {macs[1] / 1e6:.1f} M MACs ({macs[1] / macs[0]:.0%})']
    if runtime is None:
        return found
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(sys.stderr):
        timing = measure_pair(*backbones, torch.randn(1, *shape), repeats, runtime=runtime,
                              threads=1)
    milliseconds = 1e3 * median(timing.dense), 1e3 * median(timing.slim)
    return [f'{found[0]}, {milliseconds[0]:.1f} ms',
            f'{found[1]}, {milliseconds[1]:.1f} ms ({timing.ratio:.0%})']


def enlarge(pixels: Tensor, factor: int) -> Tensor:
    """Repeat the pixels of images (N, H, W, ...)."""
    return pixels.repeat_interleave(factor, 1).repeat_interleave(factor, 2)


def enlarge_sample(sample: Any, factor: int) -> Any:
    """What was found in an image, as found in the enlarged one."""
    sample = sample.cpu()
    if 'pred_instances' in sample:
        found = sample.pred_instances
        found.bboxes = found.bboxes * factor
        if 'masks' in found:
            found.masks = enlarge(found.masks, factor)
    else:
        sample.pred_sem_seg = PixelData(data=enlarge(sample.pred_sem_seg.data, factor))
    return sample


def draw_pairs(path: Path, pictures: Sequence[Sequence[ndarray]], titles: Sequence[str]) -> None:
    """Write a figure with a column for each model, and a row for each image.

    Args:
        path (Path): Of the figure.
        pictures (Sequence[Sequence[ndarray]]): By model, pictures (H, W, 3).
        titles (Sequence[str]): Of the columns.
    """
    with saved_figure(path, (8., 4.4 * len(pictures[0])), nrows=len(pictures[0]),
                      ncols=len(pictures), squeeze=False) as (_, axes):
        for row, pair in zip(axes, zip(*pictures)):
            for axis, picture in zip(row, pair):
                axis.imshow(picture)
                axis.set_axis_off()
        for axis, title in zip(axes[0], titles):
            axis.set_title(title)


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Load both models, draw, and write the pictures."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    images = find_images(args.images, args.count)
    models = load(args.dense, None, args.device), load(args.slim, args.structure, args.device)
    (dense, shape), (slim, _) = (draw(model, images, args.score_thr) for model in models)
    named = titles(models, shape, args.runtime, args.repeats)
    for image, *pictures in zip(images, dense, slim):
        path = Path(args.out) / f'{image.stem}.png'
        draw_pairs(path, [[picture] for picture in pictures], named)
        print(path)


if __name__ == '__main__':
    main()

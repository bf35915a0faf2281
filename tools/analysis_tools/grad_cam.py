"""Class activation maps (Grad-CAM) of trained models, side by side (DCS figure 4).

Which parts of an image speak for its class: maps of the last layer with positions, by the
library grad-cam (`pip install grad-cam`). Writes grad_cam.png: images, then a row a model.

Examples:
    python tools/analysis_tools/grad_cam.py DENSE.py dense.pth DCS.py dcs.pth --names dense DCS
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.attention_plots import guess_grid, plot_maps
from lab.side_by_side import add_model_arguments, pictures, read_models, spread_loader
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.evaluation.features import preserve_state
from mmkcr.models.tasks import find_task, unwrap


class _Logits(nn.Module):
    """A classifier as the library calls it: images to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs, mode='tensor')


def last_map(model: nn.Module, inputs: Tensor) -> tuple[str, nn.Module]:
    """The backbone's last layer whose output has positions.

    Args:
        model (BaseModel): A classifier.
        inputs (Tensor): Images for one forward pass.

    Returns:
        tuple[str, nn.Module]: Path below the backbone, and the layer.

    Raises:
        ValueError: There is none.
    """
    found: list[tuple[str, nn.Module]] = []
    handles = [module.register_forward_hook(
        lambda module, _, out, name=name: found.append((name, module)) if _is_map(out) else None)
        for name, module in find_task(unwrap(model)).backbone.named_modules() if name]
    try:
        with torch.no_grad():
            model(inputs, mode='tensor')
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        raise ValueError('expected a backbone with maps of several positions, found none in '
                         f'`{type(unwrap(model)).__name__}`')
    return found[-1]


def _is_map(output: Any) -> bool:
    return isinstance(output, Tensor) and (
        (output.ndim == 4 and output.shape[-2:].numel() > 1)
        or (output.ndim == 3 and output.shape[1] > 1))


def to_maps(activation: Tensor, ratio: float = 1.) -> Tensor:
    """Tokens (B, N, C) as maps (B, C, h, w); maps stay as they are."""
    if activation.ndim == 4:
        return activation
    height, width = guess_grid(activation.shape[1], ratio)
    return activation[:, -height * width:].transpose(1, 2).unflatten(2, (height, width))


def grad_cam(model: nn.Module, inputs: Tensor, labels: Sequence[int] | None = None,
             method: str = 'GradCAM') -> np.ndarray:
    """Class activation maps of a classifier.

    Args:
        model (BaseModel): The classifier.
        inputs (Tensor): (B, 3, H, W), as the data preprocessor gives them.
        labels (Sequence[int], optional): Classes. Defaults to the predicted ones.
        method (str): Class of ``pytorch_grad_cam``. Defaults to 'GradCAM'.

    Returns:
        np.ndarray: (B, H, W), 0 to 1 in each image.

    Raises:
        ImportError: The library is not installed.
        ValueError: It has no such method.
    """
    try:
        import pytorch_grad_cam
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
    except ImportError as error:
        raise ImportError('expected the library grad-cam for class activation maps, found none: '
                          '`pip install grad-cam`') from error
    if not hasattr(pytorch_grad_cam, method):
        raise ValueError(f'expected a method of grad-cam such as `GradCAM`, found `{method}`')
    model = unwrap(model)
    with preserve_state(model):
        _, layer = last_map(model, inputs[:1])
        targets = None if labels is None else [ClassifierOutputTarget(int(y)) for y in labels]
        ratio = inputs.shape[-2] / inputs.shape[-1]
        with getattr(pytorch_grad_cam, method)(
                _Logits(model), [layer],
                reshape_transform=lambda activation: to_maps(activation, ratio)) as cam:
            maps = cam(inputs, targets)
    model.zero_grad(set_to_none=True)
    return maps


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

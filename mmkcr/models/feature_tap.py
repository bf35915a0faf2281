"""Reading a layer's pooled features out of a running model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.core import eval_mode
from mmkcr.models.tasks import find_task, task_forward, unwrap


def pool_features(output: Any, layer: str = 'backbone') -> Tensor:
    """Pool a layer's output to one vector per sample, (B, d).

    It is (B, C) as it is, (B, N, C) averaged over tokens, (B, C, H, W) averaged over positions; of
    a tuple or list the last item: the last stage, or of patch tokens and a class token the class
    token. Anything else is refused.
    """
    while isinstance(output, (tuple, list)) and len(output):
        output = output[-1]
    form = f'{tuple(output.shape)}` of `{output.dtype}' if isinstance(output, Tensor) else \
        type(output).__name__
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.ndim not in (
            2, 3, 4):
        raise TypeError('expected features of shape (B, C), (B, N, C) or (B, C, H, W) from the '
                        f'tapped layer `{layer}`, found `{form}`: name the layer that gives them '
                        '(`feature_layer`; of MAE `backbone.ln1`)')
    return output if output.ndim == 2 else output.mean((2, 3) if output.ndim == 4 else 1)


def find_layer(model: nn.Module, layer: str) -> nn.Module:
    """A sub-module of a task model, also inside wrappers, by its path ('head.layers.head').

    Raises:
        ValueError: There is no such sub-module.
    """
    for root in (unwrap(model), find_task(model)):
        modules = dict(root.named_modules())
        if layer in modules:
            return modules[layer]
    children = ', '.join(name for name, _ in root.named_children())
    raise ValueError(f'expected a layer of {type(root).__name__} (with children {children}), '
                     f'found `{layer}`')


class FeatureTap:
    """Captures the pooled output, or input, of one layer during the block, with its gradients.


    Args:
        model (nn.Module): As in :func:`find_layer`.
        layer (str): The layer's path; with the suffix ':input' its first positional argument is
            captured instead of its output. Defaults to 'backbone'.
        every (bool): Concatenate the features of all runs, as of the views of
            self-supervised training. Defaults to False: the last run counts.
    """

    def __init__(self, model: nn.Module, layer: str = 'backbone', every: bool = False) -> None:
        self.layer, self.every = layer, every
        path, _, side = layer.partition(':')
        if side not in ('', 'input'):
            raise ValueError(f"expected a layer path with or without ':input', found `{layer}`")
        self._module, self._takes_input = find_layer(model, path), side == 'input'
        self._runs: list[Tensor] = []

    @property
    def features(self) -> Tensor:
        """Tensor: The features (B, d) of the last forward pass, or of all since the block began.

        Raises:
            RuntimeError: There was no forward pass.
        """
        if not self._runs:
            raise RuntimeError('expected a forward pass through the tapped layer, found none: '
                               f'`{self.layer}` has not run')
        return self._runs[0] if len(self._runs) == 1 else torch.cat(self._runs)

    def __enter__(self) -> 'FeatureTap':
        self._handle = self._module.register_forward_hook(self._capture)
        return self

    def __exit__(self, *exc) -> None:
        self._handle.remove()

    def _capture(self, module: nn.Module, args: tuple, output: Any) -> None:
        features = pool_features(args[:1] if self._takes_input else output, self.layer)
        self._runs = [*self._runs, features] if self.every else [features]


def feature_width(model: nn.Module, layer: str = 'backbone') -> int:
    """Width d of the pooled features of a layer, given as to :class:`FeatureTap`.

    It is found by a forward of zeros, of the backbone's ``img_size`` or 224 x 224, in eval mode.
    """
    backbone = getattr(model, 'backbone', model)
    size = getattr(backbone, 'img_size', 224)
    height, width = (size, size) if isinstance(size, int) else map(int, size)
    first = next((module for module in backbone.modules() if isinstance(module, nn.Conv2d)), None)
    channels = 3 if first is None else first.in_channels  # it embeds the image
    with eval_mode(model), torch.no_grad(), FeatureTap(model, layer) as tap:
        task_forward(backbone if layer == 'backbone' else model, (channels, height, width))()
    return tap.features.shape[1]


@contextmanager
def features_on_samples(model: nn.Module, layer: str = 'backbone',
                        key: str = 'features') -> Iterator[None]:
    """Within the block the model's predicted data samples carry a layer's features (d,).

    Args:
        model (nn.Module): Task model, also in a wrapper.
        layer (str): See :class:`FeatureTap`. Defaults to ``'backbone'``.
        key (str): Field of the data samples that gets them. Defaults to ``'features'``.

    Raises:
        TypeError: A forward pass does not return one data sample an image.
    """
    def attach(module: nn.Module, args: tuple, outputs: Any) -> None:
        """Put the features of a forward pass on its ``outputs``; an error if they do not fit."""
        features = tap.features
        if not isinstance(outputs, (list, tuple)) or len(outputs) != len(features):
            raise TypeError(f'expected a list of `{len(features)}` data samples from '
                            f'{type(module).__name__}, found `{type(outputs).__name__}`')
        for sample, feature in zip(outputs, features):
            sample.set_field(feature, key)

    with FeatureTap(model, layer) as tap, unwrap(model).register_forward_hook(attach):
        yield

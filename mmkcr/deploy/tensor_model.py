"""A model of any task family as a function from images to tensors, and run by an exported one."""

import copy
import inspect
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmkcr.core import count_forward_macs
from mmkcr.core.checks import one_line
from mmkcr.core.forward import flat_tensors
from mmkcr.lazy import is_of
from mmkcr.models.tasks import find_task, is_detector, tensor_outputs
from .runtimes import open_onnx


class TensorModel(nn.Module):
    """Runs a backbone or (wrapped) task model in eval mode on images; returns tensors.

    A classifier gives logits, a segmentor its head's logits (Mask2Former the last layer's scores
    of queries and masks), a backbone its feature maps. A detector gives the feature maps of its
    neck, because later stages depend on the number of objects. A visual question answering model
    gives the tokens of its image encoder. Nested outputs are laid out flat, in their order.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = find_task(model)
        self.whole = is_of(self.model, 'mmengine.model.BaseModel')
        self.detector = is_detector(self.model)
        self.train(False)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run on normalised images (B, C, H, W).

        Raises:
            ValueError: The model returns no tensors.
        """
        if not self.whole:
            out = self.model(images)
        elif self.detector:
            out = self.model.extract_feat(images)
        elif getattr(self.model, 'counts_backbone', False):
            out = self.model.extract_feat(images, 'backbone')
        else:
            out = tensor_outputs(self.model, images)
            if isinstance(out, tuple) and out and isinstance(out[0], list):
                # scores of queries and their masks, of every layer of a decoder: the last are used
                out = tuple(layers[-1] for layers in out)
        tensors = tuple(flat_tensors(out, floating=False))
        if not tensors:
            raise ValueError(f'expected a model that returns tensors, found '
                             f'`{type(self.model).__name__}`, which returns '
                             f'`{type(out).__name__}`')
        return tensors[0] if len(tensors) == 1 else tensors

    def count_macs(self, input_shape: Sequence[int]) -> int:
        """MACs of this function for one image of shape (C, H, W)."""
        images = next(self.parameters()).new_zeros(1, *input_shape)
        return count_forward_macs(self, lambda: self(images)).total


def run_by_file(model: nn.Module, path: str | Path, runtime: str = 'onnxruntime') -> None:
    """Let an exported file compute the outputs of :class:`TensorModel`.

    The rest stays in PyTorch: the preprocessor, the step from scores to classes and maps, and the
    stages of a detector behind its neck. So the hosts' test loops and metrics judge the file.

    Args:
        model (nn.Module): The (wrapped) task model; it is changed in place.
        path (str | Path): ONNX file of this network.
        runtime (str): One of :data:`~mmkcr.deploy.runtimes.PACKAGES`. Defaults to
            ``'onnxruntime'``.

    Raises:
        ValueError: The task model's later stages need more than its file gives; when it runs,
            images of a size that the file does not take, or outputs of other shapes.
    """
    task = find_task(model)
    head = _head(task)
    session = open_onnx(path, runtime)
    unseen = [copy.deepcopy(task)]

    def extract_feat(images: Tensor, *_: Any, **__: Any) -> Any:
        """Outputs of the file for images (B, C, H, W); an error of the runtime is refused."""
        try:
            arrays = session(images.detach().cpu().float().numpy())
        except Exception as error:  # the runtimes' errors have no other common base
            raise ValueError(f'expected images that `{path}` takes, found a batch of shape '
                             f'{tuple(images.shape)} ({one_line(error)})') from error
        # copied: the runtimes reuse the memory of their outputs in the next call
        outputs = tuple(torch.from_numpy(np.array(out)).to(images.device) for out in arrays)
        if unseen:
            network = unseen.pop().to(images.device)
            network.load_state_dict(task.state_dict())  # a runner loads them behind this call
            _compare(TensorModel(network), path, images, outputs)
        return outputs if len(outputs) > 1 or head is None else outputs[0]

    task.extract_feat = extract_feat
    if head is not None:  # the file's outputs are those of the head
        head.forward = lambda outputs, *_, **__: outputs


@torch.no_grad()
def _compare(network: nn.Module, path: str | Path, images: Tensor,
             outputs: Sequence[Tensor]) -> None:
    """Refuse a file of other outputs, on the first batch: the stages behind it cannot read them."""
    from mmengine.logging import print_log
    expected = flat_tensors(network(images), floating=False)
    given, wanted = ([tuple(out.shape) for out in side] for side in (outputs, expected))
    if given != wanted:
        raise ValueError(f'expected a file with outputs of shape {wanted}, as this network has, '
                         f'found `{path}` with {given}')
    # of shared shapes: a file of an earlier subnet, or of another network of the same task
    values, right = (torch.cat([out.double().flatten() for out in side])
                     for side in (outputs, expected))
    off = float((values - right).norm() / right.norm().clamp(min=1e-15))
    note = '' if off < 0.01 else ': more than rounding, as of int8 or of another network'
    print_log(f'The outputs of `{path}` on the first {len(images)} test images are {off:.2%} off '
              f'those of the checkpoint{note}.',
              'current', logging.WARNING if note else logging.INFO)


def _head(task: nn.Module) -> nn.Module | None:
    """The head whose outputs a file holds, of models that go on from them; None of a detector."""
    if is_detector(task):  # its file holds the maps of the neck
        return None
    head = getattr(task, 'decode_head', getattr(task, 'head', None))
    # of a cascade each head reads what the one before gives, not the file's outputs
    several = isinstance(head, nn.ModuleList) or is_of(head, 'mmpretrain.models.MultiTaskHead')
    if several or not isinstance(head, nn.Module) or getattr(task, 'counts_backbone', False) or \
            'batch_data_samples' in inspect.signature(head.forward).parameters:
        raise ValueError('expected a detector, or a classifier or segmentor with one head that '
                         'reads nothing but features, to run by a file, found '
                         f'`{type(task).__name__}`' + (
                             f' with several heads in `{type(head).__name__}`' if several else ''))
    return head

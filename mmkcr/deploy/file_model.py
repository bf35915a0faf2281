"""An exported file in place of the network of a task model, to evaluate it."""

import copy
import inspect
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from mmkcr.core.forward import flat_tensors
from mmkcr.lazy import is_of
from mmkcr.models.tasks import find_task, is_detector
from .runtimes import open_onnx
from .tensor_model import TensorModel


def run_by_file(model: nn.Module, path: str | Path, runtime: str = 'onnxruntime') -> None:
    """Let an exported file compute what :class:`~mmkcr.deploy.tensor_model.TensorModel` exports.

    The rest stays in PyTorch: the preprocessor, what turns scores into classes and maps, and the
    stages of a detector behind its neck. So the hosts' test loops and metrics judge the file.

    Args:
        model (nn.Module): A task model, possibly wrapped; changed in place.
        path (str | Path): A file of :func:`~mmkcr.deploy.export.export_onnx`, of this network.
        runtime (str): See :func:`~mmkcr.deploy.runtimes.open_onnx`. Defaults to
            ``'onnxruntime'``.

    Raises:
        ValueError: The task model's later stages need more than what its file gives; when it runs,
            images of a size that the file does not take, or outputs of other shapes.
    """
    task = find_task(model)
    head = _head(task)
    session = open_onnx(path, runtime)
    unseen = [copy.deepcopy(task)]

    def extract_feat(images: Tensor, *_: Any, **__: Any) -> Any:
        try:
            arrays = session(images.detach().cpu().float().numpy())
        except Exception as error:  # the runtimes' errors have no other common base
            message = ' '.join(str(error).split())[:300]
            raise ValueError(f'expected images that `{path}` takes, found a batch of shape '
                             f'{tuple(images.shape)} ({message})') from error
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

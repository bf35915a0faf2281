"""Task models of the hosts: their library, their searchable backbone, one forward."""

import inspect
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmkcr.core import count_params
from mmkcr.lazy import is_of
from .search_space import SearchSpace, search_spaces
from .two_stage import most_proposals, two_stage_outputs


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside wrappers: distributed, compiled, or for test-time augmentation."""
    wrapped = isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
    if 'mmengine.model' in sys.modules:
        from mmengine.model import BaseTTAModel, is_model_wrapper
        wrapped = is_model_wrapper(model) or isinstance(model, BaseTTAModel)
    if wrapped:
        return unwrap(model.module)
    # of `torch.compile`
    return unwrap(model._orig_mod) if '_orig_mod' in model._modules else model


@contextmanager
def keep_randomness() -> Iterator[None]:
    """Afterwards the random states of PyTorch, NumPy and Python are as before."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    # without this argument `fork_rng` visits all devices, and so starts CUDA
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def momentum_copies(model: nn.Module) -> list[nn.Module]:
    """Averaged copies that a model keeps of parts of itself, such as MoCo's key encoder."""
    return [module for module in model.modules()
            if module is not model and is_of(module, 'mmengine.model.BaseAveragedModel')]


def online_params(model: nn.Module) -> int:
    """Number of parameters, without momentum copies."""
    return count_params(model) - sum(map(count_params, momentum_copies(model)))


def spaces_of_copies(model: nn.Module) -> list[SearchSpace]:
    """Search spaces of the backbones in a model's momentum copies."""
    return [space for copy in momentum_copies(model) for space in search_spaces(copy)]


def renew_record(average: nn.Module) -> None:
    """Make an averaged copy average the parameters that it has now.

    MMEngine collects them once, when the copy is made; slicing has replaced some since.
    """
    average.avg_parameters = average.module.state_dict() if average.update_buffers else \
        dict(average.module.named_parameters())


@contextmanager
def hold_copies(model: nn.Module) -> Iterator[None]:
    """Within the block, a model's momentum copies stay as they are.

    Self-supervised models update their copies in every training forward. A copy that was never
    updated still becomes equal to the model, as in its first update.
    """
    def begin(copy: nn.Module, online: nn.Module) -> None:
        if copy.steps == 0:
            # the method of the class: the attribute of the instance is this very function
            type(copy).update_parameters(copy, online)
            copy.steps.zero_()

    copies = momentum_copies(model)
    for averaged in copies:
        averaged.update_parameters = partial(begin, averaged)
    try:
        yield
    finally:
        for averaged in copies:
            del averaged.update_parameters


def search_space(model: nn.Module) -> SearchSpace:
    """The search space of the one searchable backbone of a model, or of the whole model.

    Momentum copies are ignored; none, or more than one side by side, is refused.
    """
    hosts = search_spaces(model)
    if len(hosts) > 1:  # a search asks several times in every iteration: mostly one pass is enough
        copied = spaces_of_copies(model)
        hosts = [space for space in hosts if space not in copied]
        # backbones in hosts that are searched as a whole
        inside = {part for space in hosts for part in space.host.modules()
                  if part is not space.host}
        hosts = [space for space in hosts if space.host not in inside]
    if len(hosts) != 1:
        raise ValueError('expected one searchable backbone (such as `KCRSwinTransformer`, or any '
                         f'in `mmkcr.Searchable`) in `{model.__class__.__name__}`, found '
                         f'{len(hosts)} (copies in an `ExponentialMovingAverage` or another '
                         'averaged model are not counted)')
    return hosts[0]


def find_backbone(model: nn.Module) -> nn.Module:
    """The one searchable backbone of a model; see :func:`search_space`."""
    return search_space(model).host


def task_forward(model: nn.Module, input_shape: Sequence[int]) -> Callable[[], Any]:
    """Make a function that runs a model once on zeros, without a data set.

    A task model runs with its head, but without losses or post-processing, a backbone for masked
    image modelling on the whole image, and a two-stage detector on :func:`most_proposals`
    proposals.

    Raises:
        ValueError: The model reads text, too. The function raises it where the model does not run
            on one image of shape (C, H, W), or not without labels.
    """
    name = type(find_task(model)).__name__
    if hasattr(find_task(model), 'language_model'):
        raise ValueError(f'expected a model that reads images alone, found `{name}`, which reads '
                         'text too: its backbone can be counted and compressed')
    run = _forward_of_zeros(model, input_shape)

    def run_once() -> Any:
        try:
            return run()
        except Exception as error:  # of whatever module it is
            message = str(error) or traceback.extract_tb(error.__traceback__)[-1].line
            reason = ' '.join(f'{type(error).__name__}: {message}'.split())
            raise ValueError(f'expected `{name}` to run on one image of zeros of `input_shape` '
                             f'{tuple(input_shape)} (`--shape` of the commands), without labels, '
                             f'found that it raised {reason}') from error

    return run_once


def _forward_of_zeros(model: nn.Module, input_shape: Sequence[int]) -> Callable[[], Any]:
    inputs = next(model.parameters()).new_zeros(1, *input_shape)
    if not is_of(model, 'mmengine.model.BaseModel'):
        unmasked = dict(mask=None) if 'mask' in inspect.signature(model.forward).parameters else {}
        return lambda: model(inputs, **unmasked)
    task = find_task(model)
    samples = None
    if is_detector(task):
        from mmdet.structures import DetDataSample
        shape = tuple(input_shape[-2:])
        samples = [DetDataSample(metainfo=dict(img_shape=shape, ori_shape=shape, pad_shape=shape,
                                               batch_input_shape=shape, scale_factor=(1., 1.)))]
    proposals = most_proposals(task)
    if proposals is not None:
        side = min(input_shape[-2:]) / 2
        # only the number of proposals counts, not where they are
        boxes = inputs.new_tensor([0., 0., side, side]).expand(proposals, 4)
        return lambda: two_stage_outputs(task, inputs, samples, [[boxes]])
    return lambda: tensor_outputs(model, inputs, samples)


def tensor_outputs(model: nn.Module, inputs: Tensor,
                   samples: Sequence[Any] | None = None) -> Any:
    """Outputs of a task model in mode ``'tensor'``.

    The heads of Mask2Former and MaskFormer read the images' sizes from samples; mmseg gives them
    none in this mode.

    Args:
        model (nn.Module): Task model, also in a wrapper.
        inputs (Tensor): Preprocessed images, (B, C, H, W).
        samples (Sequence, optional): Data samples of the images. Defaults to None.
    """
    task = find_task(model)
    head = getattr(task, 'decode_head', None)
    if head is None or 'batch_data_samples' not in inspect.signature(head.forward).parameters:
        return model(inputs, samples, mode='tensor')
    from mmseg.structures import SegDataSample
    size = tuple(inputs.shape[-2:])
    sizes = dict(img_shape=size, batch_input_shape=size, pad_shape=size)
    return head(task.extract_feat(inputs), [SegDataSample(metainfo=sizes) for _ in inputs])


def deciding_scores(task: nn.Module, outputs: Any) -> Any:
    """The scores whose argmax a classifier predicts, from its head's outputs.

    The head of a Conformer gives the scores of both branches, and adds them up to predict.
    """
    summed = is_of(getattr(task, 'head', None), 'mmpretrain.models.ConformerHead')
    return sum(outputs) if summed else outputs


def gives_scores(model: nn.Module, outputs: Sequence[Tensor]) -> bool:
    """Whether a network's outputs for one image are a score of each class."""
    classes = getattr(model, 'num_classes', None) or getattr(
        getattr(model, 'config', None), 'num_labels', None)
    return [tuple(output.shape) for output in outputs] == [(1, classes)]


def find_task(model: nn.Module) -> nn.Module:
    """The task model inside our training wrappers and the wrappers of :func:`unwrap`."""
    model = unwrap(model)
    return find_task(model.architecture) if hasattr(model, 'architecture') else model


def is_self_supervised(task: nn.Module) -> bool:
    """Whether a task model is one of mmpretrain that learns without labels."""
    return is_of(task, 'mmpretrain.models.BaseSelfSupervisor')


def _of_library(task: nn.Module, *libraries: str) -> bool:
    return any(cls.__module__.startswith(libraries) for cls in type(task).__mro__)


def is_detector(task: nn.Module) -> bool:
    """Whether a task model is one of mmdet."""
    return _of_library(task, 'mmdet.')


def is_segmentor(task: nn.Module) -> bool:
    """Whether a task model is one of mmseg."""
    return _of_library(task, 'mmseg.')


def is_dense_task(task: nn.Module) -> bool:
    """Whether a task model is a detector or a segmentor: its backbone is not the whole of it."""
    return _of_library(task, 'mmdet.', 'mmseg.') and hasattr(task, 'backbone')


def part_to_count(task: nn.Module, part: str | None = None) -> nn.Module:
    """The module whose MACs a budget counts: ``'model'``, with its heads, or ``'backbone'``.

    Without a ``part`` it is the backbone of a detector, whose heads run on as many proposals as its
    weights give, and of a model that says so (``counts_backbone``); otherwise the model.

    Raises:
        ValueError: Another part.
    """
    if part not in (None, 'model', 'backbone'):
        raise ValueError(f'expected `part` of the MACs to be `model` or `backbone`, found {part!r}')
    counts_model = part == 'model' or part is None and not (
        is_detector(task) or getattr(task, 'counts_backbone', False))
    return task if counts_model else find_backbone(task)

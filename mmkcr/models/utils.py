"""Finding the searchable backbone of a task model, and running one once."""

from typing import Any, Callable, Optional, Sequence

from mmengine.model import BaseModel, is_model_wrapper
from torch import nn

from mmkcr.core import count_forward_macs
from mmkcr.core.added import added_layers
from .searchable import SearchSpace


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside a (distributed or averaging) wrapper."""
    return model.module if is_model_wrapper(model) else model


def search_space(model: nn.Module) -> SearchSpace:
    """The search space of the one searchable backbone of a model.

    Args:
        model (nn.Module): A backbone, a task model or a wrapper around one.

    Raises:
        ValueError: There is none, or more than one.
    """
    found = [module for module in model.modules()
             if isinstance(getattr(module, 'search_space', None), SearchSpace)]
    if len(found) != 1:
        raise ValueError('expected one searchable backbone (such as `KCRSwinTransformer`, or any '
                         f'in `mmkcr.Searchable`) in `{model.__class__.__name__}`, found '
                         f'{len(found)}')
    return found[0].search_space


def find_backbone(model: nn.Module) -> nn.Module:
    """The one searchable backbone of a model; see :func:`search_space`."""
    return search_space(model).host


def task_forward(model: nn.Module, input_shape: Sequence[int]) -> Callable[[], Any]:
    """A call that runs a model once on zeros, without a data set.

    Args:
        model (nn.Module): A backbone, or a classifier, detector or segmentor
            of the host libraries.
        input_shape (Sequence[int]): Shape (C, H, W) of one image.

    Returns:
        Callable: Runs the model on a batch of one, in its own precision and on its device; a task
        model runs with its head, without losses or post-processing.
    """
    inputs = next(model.parameters()).new_zeros(1, *input_shape)
    if not isinstance(model, BaseModel):
        return lambda: model(inputs)
    samples = [_detection_sample(input_shape[-2:])] if is_detector(find_task(model)) else None
    return lambda: model(inputs, samples, mode='tensor')


def find_task(model: nn.Module) -> nn.Module:
    """The task model inside our training wrappers."""
    return find_task(model.architecture) if hasattr(model, 'architecture') else model


def is_detector(task: nn.Module) -> bool:
    """Whether a task model is one of mmdet."""
    return any(cls.__module__.startswith('mmdet.') for cls in type(task).__mro__)


def counted_part(task: nn.Module, part: Optional[str] = None) -> nn.Module:
    """What a budget counts the MACs of.

    Args:
        task (nn.Module): A backbone or a task model with one.
        part (str, optional): ``'model'``, the task model with its heads, or
            ``'backbone'``. Defaults to None: the backbone of a detector, whose
            heads run on as many proposals as its weights happen to give, else
            the model.

    Raises:
        ValueError: Another ``part``.
    """
    if part not in (None, 'model', 'backbone'):
        raise ValueError(f'expected `part` of the MACs to be `model` or `backbone`, found {part!r}')
    whole = part == 'model' or part is None and not is_detector(task)
    return task if whole else find_backbone(task)


def _detection_sample(shape: Sequence[int]) -> Any:
    from mmdet.structures import DetDataSample
    shape = tuple(shape)
    return DetDataSample(metainfo=dict(img_shape=shape, ori_shape=shape, pad_shape=shape,
                                       batch_input_shape=shape, scale_factor=(1., 1.)))


def backbone_macs(backbone: nn.Module, input_shape: Sequence[int]) -> int:
    """MACs of a backbone for one image, without layers that a method adds for its training.

    Args:
        backbone (nn.Module): A backbone.
        input_shape (Sequence[int]): (C, H, W).
    """
    report = count_forward_macs(backbone, task_forward(backbone, input_shape))
    return report.total - sum(report.modules.get(name, 0) for name in added_layers(backbone))


def check_recorded_macs(model: nn.Module) -> None:
    """Compare a subnet's backbone with the MACs in its structure, by one forward.

    Args:
        model (nn.Module): Any; without a structure, or a count of its backbone, it passes.

    Raises:
        ValueError: They are others: the structure or the backbone's arguments were altered.
    """
    for module in unwrap(model).modules():
        structure = getattr(getattr(module, 'search_space', None), 'structure', None)
        macs = {} if structure is None else structure.macs
        recorded = macs.get('subnet') if macs.get('part') == 'backbone' else macs.get('backbone')
        if recorded is None or 'input_shape' not in macs:
            continue
        found = backbone_macs(module, macs['input_shape'])
        if found != recorded:
            raise ValueError(
                f'expected a `{type(module).__name__}` of {recorded} MACs at '
                f'{tuple(macs["input_shape"])}, as its structure says, found one of {found}: the '
                'structure or the arguments of the backbone were altered since it was searched '
                '(a structure without `macs` is not compared)')

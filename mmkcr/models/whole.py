"""What a whole task model gives for calibration images, alike for a dense and a slim one.

What a detector looks at behind its first stage depends on what that stage says: the proposals of a
region proposal network, the places that a transformer's queries start from. For two networks to be
compared row by row both must look at the same: at what the dense one chooses. These choices are
made once and held beside the images.
"""

import copy
from contextlib import ExitStack
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import torch
from torch import Tensor, nn

from .utils import is_detector, most_proposals, two_stage_outputs

#: Most regions of a batch: mmdet computes the masks of the first 100 of a batch.
REGIONS = 100
#: Most images of such a batch, so that enough regions are of one image.
IMAGES_WITH_REGIONS = 2


class Held(NamedTuple):
    """What the dense network chose for a batch.

    Args:
        boxes (list[Tensor], optional): Proposals of every image, (P, 4), equally many.
        scores (Tensor, optional): Of the places that queries may start from, (N, places).
    """

    boxes: Optional[List[Tensor]] = None
    scores: Optional[Tensor] = None


class HeldBatches(Sequence):
    """Batches of a detector's images with the choices of the dense network under ``'held'``.

    Args:
        batches (Sequence[dict]): Of its data preprocessor.
        dense (nn.Module): Task model; its choices are made when a batch is first asked for.
    """

    def __init__(self, batches: Sequence[Any], dense: nn.Module) -> None:
        self._batches, self._dense = batches, dense
        self._held: Dict[int, Held] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return HeldBatches(self._batches[place], self._dense)
        batch = self._batches[place]
        place %= len(self)
        if place not in self._held:
            self._held[place] = _choices(self._dense, batch)
        return dict(batch, held=_Opaque(self._held[place]))


class _Opaque:
    """Keeps its content as it is, whatever is done to the tensors of a batch."""

    def __init__(self, content: Held) -> None:
        self.content = content


@torch.no_grad()
def _choices(dense: nn.Module, batch: Any) -> Held:
    """Proposals of a region proposal network, or scores of a transformer's places."""
    images, samples = batch['inputs'], batch['data_samples']
    if most_proposals(dense) is not None:
        features = dense.extract_feat(images)
        found = dense.rpn_head.predict(features, samples, rescale=False)
        most = max(1, min(most_proposals(dense), REGIONS // len(images)))
        return Held(boxes=[_chosen(one.bboxes, most, images) for one in found])
    layer = _scoring_layer(dense)
    if layer is None:
        return Held()
    scores: List[Tensor] = []
    handle = layer.register_forward_hook(lambda _, __, out: scores.append(out.max(-1)[0]))
    try:
        dense(images, samples, mode='tensor')
    finally:
        handle.remove()
    return Held(scores=scores[0])


def _chosen(boxes: Tensor, count: int, images: Tensor) -> Tensor:
    """Some of an image's proposals; the whole image where there is none.

    The box head sees all of them, and most are background: the first ones alone are of another
    kind, to which a head must not be fitted. So half are the first, the others from all the rest.
    """
    if not len(boxes):
        height, width = images.shape[-2:]
        boxes = images.new_tensor([[0., 0., width, height]])
    if len(boxes) <= count:  # repeated
        return boxes[torch.arange(count, device=boxes.device) % len(boxes)]
    first = count - count // 2
    rest = torch.linspace(first, len(boxes) - 1, count // 2, device=boxes.device).round().long()
    return boxes[torch.cat([torch.arange(first, device=boxes.device), rest])]


def _scoring_layer(model: nn.Module) -> Optional[nn.Module]:
    """The layer whose scores say where queries start, of a transformer of two stages."""
    branches = getattr(getattr(model, 'bbox_head', None), 'cls_branches', None)
    layers = getattr(getattr(model, 'decoder', None), 'num_layers', None)
    if branches is None or layers is None or len(branches) != layers + 1:
        return None
    return branches[layers]


def whole_outputs(model: nn.Module, batch: Any) -> Any:
    """All outputs of a task model that its losses and predictions are made of.

    Args:
        model (nn.Module): Dense or slim.
        batch (dict): Of :class:`HeldBatches` for a detector.

    Returns:
        Any: Tensors, nested.
    """
    images = batch['inputs']
    if not is_detector(model):
        return model(images, mode='tensor')
    held, samples = batch['held'].content, copy.copy(batch['data_samples'])
    if held.boxes is not None:
        return two_stage_outputs(model, images, samples, held.boxes)
    with ExitStack() as stack:
        if held.scores is not None:
            handle = _scoring_layer(model).register_forward_hook(
                lambda _, __, out: held.scores.to(out)[..., None].expand_as(out))
            stack.callback(handle.remove)
        return model(images, samples, mode='tensor')

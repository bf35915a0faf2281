"""Outputs of a whole task model on calibration images, comparable between dense and slim.

The second stage of a detector depends on choices of its first stage: the proposals of a region
proposal network, or the places where a transformer's queries start. To compare two networks row by
row, both must use the dense network's choices. They are made once and kept beside the images.
"""

import copy
import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmkcr.core.forward import stop_after
from mmkcr.models.tasks import is_detector, tensor_outputs
from mmkcr.models.two_stage import MASKS, most_proposals, refine_boxes, two_stage_outputs
from .batches import images_digest
from .options import Forward


class Held(NamedTuple):
    """The dense network's choices for a batch."""

    #: Proposals by stage and image, (P, 4), equally many; one stage, but for a cascade.
    boxes: list[list[Tensor]] | None = None
    #: Scores of the places where queries may start, (N, places).
    scores: Tensor | None = None


class HeldBatches(Sequence):
    """Batches of a detector's data preprocessor, with the dense network's choices as ``'held'``.

    The network chooses for a batch when the batch is first asked for.

    Args:
        batches (Sequence): Batches of the data preprocessor.
        dense (nn.Module): The dense detector. Its weights must stay as they are.
    """

    def __init__(self, batches: Sequence[Any], dense: nn.Module) -> None:
        self._batches, self._dense = batches, dense
        self._places: Sequence[int] = range(len(batches))
        self._held: dict[int, Held] = {}  # shared with all parts of these batches

    def __len__(self) -> int:
        return len(self._places)

    def sources(self) -> list[Any]:
        """The origin of each batch, see :meth:`ImageBatches.sources`."""
        known = self._batches.sources() if hasattr(self._batches, 'sources') else self._places
        return [known[place] for place in self._places]

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            part = copy.copy(self)
            part._places = self._places[place]
            return part
        place = self._places[place]
        batch = self._batches[place]
        if place not in self._held:
            self._held[place] = _choices(self._dense, batch)
        return dict(batch, held=self._held[place])

    def digest(self) -> str:
        """SHA-256 of the images; the choices depend on them and on the dense network."""
        text = f'{images_digest(self._batches)} {list(self._places)}'
        return hashlib.sha256(text.encode()).hexdigest()


@torch.no_grad()
def _choices(dense: nn.Module, batch: Any) -> Held:
    """Proposals of a region proposal network, or scores of a transformer's places."""
    images, samples = batch['inputs'], batch['data_samples']
    if most_proposals(dense) is not None:
        features = dense.extract_feat(images)
        proposals = dense.rpn_head.predict(features, samples, rescale=False)
        # all images of a batch together stay within mmdet's 100 masks
        most = max(1, min(most_proposals(dense), MASKS // len(images)))
        boxes = [some_proposals(one.bboxes, most, images) for one in proposals]
        return Held(boxes=refine_boxes(dense, features, boxes, samples))
    layer = _scoring_layer(dense)
    if layer is None:
        return Held()
    scores: list[Tensor] = []
    # best class per place
    with layer.register_forward_hook(lambda _, __, out: scores.append(out.max(-1)[0])):
        dense(images, samples, mode='tensor')
    return Held(scores=scores[0])


def some_proposals(boxes: Tensor, count: int, images: Tensor) -> Tensor:
    """Some of an image's proposals: half of them the best, half from the whole ranking.

    Most of the proposals that a box head sees are background. The best ones are objects, and a head
    must not be fitted to objects alone.

    Args:
        boxes (Tensor): All proposals, (P, 4), the best first; of none the whole image is taken.
        count (int): Number of proposals to give; fewer proposals are repeated.
        images (Tensor): The batch (B, 3, H, W), for its size.

    Returns:
        Tensor: Proposals, (count, 4).
    """
    if not len(boxes):
        height, width = images.shape[-2:]
        boxes = images.new_tensor([[0., 0., width, height]])
    if len(boxes) <= count:  # repeated to give `count` rows
        return boxes[torch.arange(count, device=boxes.device) % len(boxes)]
    first = count - count // 2
    rest = torch.linspace(first, len(boxes) - 1, count // 2, device=boxes.device).round().long()
    return boxes[torch.cat([torch.arange(first, device=boxes.device), rest])]


def _scoring_layer(model: nn.Module) -> nn.Module | None:
    """The layer whose scores select where queries start, in a two-stage transformer."""
    branches = getattr(getattr(model, 'bbox_head', None), 'cls_branches', None)
    layers = getattr(getattr(model, 'decoder', None), 'num_layers', None)
    # one branch per decoder layer, and one more for the encoder's places
    if branches is None or layers is None or len(branches) != layers + 1:
        return None
    return branches[layers]


def whole_outputs(model: nn.Module, batch: Any) -> Any:
    """All outputs of a task model that its losses and predictions depend on, tensors, nested.

    For a detector the batch is one of :class:`HeldBatches`.
    """
    images = batch['inputs']
    if not is_detector(model):
        return tensor_outputs(model, images)
    held, samples = batch['held'], copy.copy(batch['data_samples'])
    if held.boxes is not None:
        return two_stage_outputs(model, images, samples, held.boxes)
    with ExitStack() as stack:
        if held.scores is not None:
            # equal scores for all classes: the host ranks places by their best class
            stack.enter_context(_scoring_layer(model).register_forward_hook(
                lambda _, __, out: held.scores.to(out)[..., None].expand_as(out)))
        return model(images, samples, mode='tensor')


def backbone_outputs(forward: Forward, model: nn.Module, batch: Any) -> list[Any]:
    """The output of a task model's backbone in a forward, which ends there.

    Args:
        forward (Callable): Takes the model and a batch.
        model (nn.Module): Task model with a ``backbone``.
        batch (Any): A batch of ``forward``.
    """
    outputs: list[Any] = []
    with ExitStack() as stack:
        handle = model.backbone.register_forward_hook(lambda _, __, out: outputs.append(out))
        stack.callback(handle.remove)
        stack.enter_context(stop_after(model.backbone))
        forward(model, batch)
    return outputs

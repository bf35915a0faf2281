"""The second stage of mmdet's detectors on proposals that are given, cascades included."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from mmkcr.lazy import is_of

#: mmdet computes the masks of at most so many regions.
MASKS = 100


def most_proposals(task: nn.Module) -> int | None:
    """Maximum number of proposals per image that a detector's second stage takes.

    It is ``test_cfg.rpn.max_per_img``, 1000 in mmdet's configs; None if no region proposal network
    feeds a second stage.
    """
    if not is_of(getattr(task, 'rpn_head', None), 'mmdet.models.RPNHead') or \
            getattr(task, 'roi_head', None) is None:
        return None
    return int(task.rpn_head.test_cfg['max_per_img'])


def cascade_stages(task: nn.Module) -> int:
    """Number of stages of a Cascade (Mask) R-CNN, each with heads of its own; 0 of others."""
    head = getattr(task, 'roi_head', None)
    known = f'{type(head).__module__}.{type(head).__name__}'
    return head.num_stages if known == 'mmdet.models.roi_heads.cascade_roi_head.CascadeRoIHead' \
        else 0


def two_stage_outputs(task: nn.Module, inputs: Tensor, samples: Sequence[Any],
                      boxes: Sequence[Sequence[Tensor]]) -> tuple[Any, Any]:
    """Outputs of both stages of a detector of mmdet, on given proposals.

    Masks are of the last stage's first :data:`MASKS` proposals.
    The stages of a cascade are run one by one, each on its own proposals: mmdet's own forward
    makes them of the outputs before, gives the boxes of the last stage alone, and detaches masks.

    Args:
        task, inputs, samples: The detector, images (N, 3, H, W) and their data samples.
        boxes (Sequence[Sequence[Tensor]]): Proposals of every image, (P, 4) each: x1, y1, x2, y2
            in pixels; of every stage of a cascade, or once for all stages.
    """
    from mmengine.structures import InstanceData
    features, stages = task.extract_feat(inputs), cascade_stages(task)
    if not stages:
        proposals = [InstanceData(bboxes=maps) for maps in boxes[0]]
        return task.rpn_head(features), task.roi_head.forward(features, proposals, samples)
    head, maps = task.roi_head, []
    for stage in range(stages):
        maps.append(_of_regions(head.bbox_roi_extractor[stage], head.bbox_head[stage], features,
                                boxes[min(stage, len(boxes) - 1)]))
    if head.with_mask:
        maps += [_of_regions(head.mask_roi_extractor[stage], head.mask_head[stage], features,
                             boxes[-1], MASKS) for stage in range(stages)]
    return task.rpn_head(features), maps


def _of_regions(extractor: nn.Module, head: nn.Module, features: Sequence[Tensor],
                boxes: Sequence[Tensor], most: int | None = None) -> Any:
    """Outputs of a head on the first ``most`` regions."""
    from mmdet.structures.bbox import bbox2roi
    return head(extractor(features[:extractor.num_inputs], bbox2roi(list(boxes))[:most]))


def refine_boxes(task: nn.Module, features: Sequence[Tensor], boxes: Sequence[Tensor],
                 samples: Sequence[Any]) -> list[list[Tensor]]:
    """Proposals of all stages of a detector, as its weights refine them, by stage and image.

    A detector that is no cascade has one stage.

    Args:
        task (nn.Module): The detector.
        features (Sequence[Tensor]): Maps of the neck.
        boxes (Sequence[Tensor]): Proposals of the first stage, (P, 4) for every image.
        samples (Sequence): Data samples of the images.
    """
    from mmdet.structures.bbox import get_box_tensor
    stages, head = [list(boxes)], task.roi_head
    for stage in range(cascade_stages(task) - 1):
        of_stage = head.bbox_head[stage]
        scores, deltas = _of_regions(head.bbox_roi_extractor[stage], of_stage, features, stages[-1])
        if of_stage.custom_activation:
            scores = of_stage.loss_cls.get_activation(scores)
        labels, count = scores[:, :-1].argmax(1), len(boxes[0])
        following = zip(stages[-1], labels.split(count), deltas.split(count), samples)
        stages.append([get_box_tensor(of_stage.regress_by_class(*parts, sample.metainfo))
                       for *parts, sample in following])
    return stages

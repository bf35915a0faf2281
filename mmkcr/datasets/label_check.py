"""Refuses masks with labels out of range, naming the mask."""

from typing import Any

from mmkcr.registry import TRANSFORMS
from .part import inner_sets


@TRANSFORMS.register_module()
class CheckSegLabels:
    """Checks the labels of a packed sample of semantic segmentation; others pass.

    Unchecked, a label out of range is a device assertion without a name in the middle of a loss,
    and a metric ignores it. :class:`mmkcr.ClassCheckHook` appends this to a run's transforms.

    Args:
        num_classes (int): Labels are 0 to ``num_classes - 1``.
        ignore_index (int): The only other permitted label. Defaults to 255.
    """

    def __init__(self, num_classes: int, ignore_index: int = 255) -> None:
        self.num_classes, self.ignore_index = num_classes, ignore_index

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Check a sample.

        Raises:
            ValueError: A label is out of range; the message names the mask.
        """
        sample = results.get('data_samples')
        if hasattr(sample, 'gt_sem_seg'):
            labels = sample.gt_sem_seg.data
            wrong = labels[((labels < 0) | (labels >= self.num_classes))
                           & (labels != self.ignore_index)]
            if wrong.numel():
                where = sample.metainfo.get('seg_map_path', sample.metainfo.get('img_path'))
                raise ValueError(
                    f'expected labels below {self.num_classes}, the number of classes, or '
                    f'{self.ignore_index}, found {int(wrong[0])} in the mask `{where}`')
        return results


def watch_labels(dataset: Any, num_classes: int) -> None:
    """Put :class:`CheckSegLabels` behind a data set's transforms, once.

    Its ``pipeline``, or those inside wrappers and joined sets, are extended in place if they are a
    ``Compose`` or the list of a set that mixes images.
    """
    if not hasattr(dataset, 'pipeline'):
        for child in inner_sets(dataset):
            watch_labels(child, num_classes)
        return
    transforms = getattr(dataset.pipeline, 'transforms', dataset.pipeline)
    if not isinstance(transforms, list) or any(isinstance(t, CheckSegLabels) for t in transforms):
        return
    inner = dataset
    while not hasattr(inner, 'ignore_index') and inner_sets(inner):
        inner = inner_sets(inner)[0]
    transforms.append(CheckSegLabels(num_classes, getattr(inner, 'ignore_index', 255)))
    if isinstance(getattr(dataset, 'pipeline_types', None), list):  # `MultiImageMixDataset`
        dataset.pipeline_types.append(CheckSegLabels.__name__)

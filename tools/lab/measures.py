"""Numbers of a trained classifier for tables: each takes the model and its config."""

from typing import Mapping

from mmengine.config import Config
from torch import nn

from mmkcr.evaluation.analysis import kernel_statistics, split_loader
from mmkcr.evaluation.bottleneck import information_statistics
from mmkcr.evaluation.masks import accuracy_with_masks_open, find_masks, mask_statistics
from mmkcr.models.utils import find_task, unwrap


def kernel_measure(model: nn.Module, config: Config) -> Mapping[str, float]:
    """Kernel complexity of the features of the training set."""
    return kernel_statistics(model, split_loader(config, 'train'))


def information_measure(model: nn.Module, config: Config) -> Mapping[str, float]:
    """I(X~, X), I(X~, Y), IB and its bounds on the training set, of what the classifier reads."""
    head = find_task(unwrap(model)).head
    classifier = [name for name, module in head.named_modules() if isinstance(module, nn.Linear)]
    if not classifier:
        raise ValueError('expected a head that ends in a linear layer, found '
                         f'`{type(head).__name__}`')
    return information_statistics(model, split_loader(config, 'train'), head.num_classes,
                                  f'head.{classifier[-1]}:input')


def mask_measure(model: nn.Module, config: Config) -> Mapping[str, float]:
    """What the masks of queries and keys do to the validation set; nothing without masks.

    Openness and shares of constant channels, mean over the masks, and the top-1 with all masks
    held open.
    """
    if not find_masks(model):
        return {}
    loader = split_loader(config, 'val')
    found = list(mask_statistics(model, loader).values())
    means = {key: 100 * sum(getattr(mask, key) for mask in found) / len(found)
             for key in ('open', 'always', 'never')}
    return dict(means, top1_open=accuracy_with_masks_open(model, loader))

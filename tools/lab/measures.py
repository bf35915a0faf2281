"""Numbers of a trained classifier for tables: each takes the model and its config."""

from typing import Mapping

from mmengine.config import Config
from torch import nn

from mmkcr.evaluation.analysis import kernel_statistics, split_loader
from mmkcr.evaluation.bottleneck import information_statistics
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

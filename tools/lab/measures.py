"""Numbers of a trained classifier for tables: each takes the model and its config."""

from typing import Dict, List, Mapping

import torch
from mmengine.config import Config
from torch import nn

from mmkcr.apis.build import default_shape
from mmkcr.apis.count import count_parts
from mmkcr.evaluation.analysis import classification_scores, kernel_statistics, split_loader
from mmkcr.evaluation.bottleneck import information_statistics
from mmkcr.evaluation.features import feature_layer_of, undisturbed
from mmkcr.models.utils import find_task, unwrap
from .mask_statistics import find_masks, mask_statistics, masks_held_open


def kernel_measure(model: nn.Module, config: Config) -> Mapping[str, float]:
    """Kernel complexity of the features of the training set."""
    return kernel_statistics(model, split_loader(config, 'train'), feature_layer_of(model))


def information_measure(model: nn.Module, config: Config) -> Mapping[str, float]:
    """I(X~, X), I(X~, Y), IB and its bounds on the training set, of what the classifier reads."""
    return information_statistics(model, split_loader(config, 'train'),
                                  find_task(unwrap(model)).head.num_classes,
                                  feature_layer_of(model))


def backbone_measure(model: nn.Module, config: Config) -> Mapping[str, float]:
    """M MACs of the backbone alone."""
    model = unwrap(model)
    return dict(macs=count_parts(model, default_shape(config, model))['backbone'] / 1e6)


def question_measure(model: nn.Module, config: Config) -> Mapping[str, float]:
    """Percent of right answers on the validation set, by the first two words of the questions."""
    right: Dict[str, List[bool]] = {}
    with undisturbed(model), torch.no_grad():
        for batch in split_loader(config, 'val'):
            for sample in model.test_step(batch):
                kind = '-'.join(sample.question.lower().split()[:2])
                right.setdefault(kind, []).append(sample.pred_answer in sample.gt_answer)
    return {kind: 100 * sum(found) / len(found) for kind, found in right.items()}


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
    with masks_held_open(model):
        control = classification_scores(model, loader)
    return dict(means, top1_open=control['top1'])

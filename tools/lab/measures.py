"""Numbers of a trained model for tables: each takes the model and its config."""

from collections.abc import Mapping

import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

from mmkcr.engine.build import default_shape
from mmkcr.evaluation.features import feature_layer_of, preserve_state
from mmkcr.methods.dcs.information_bottleneck import information_statistics
from mmkcr.methods.dcs.qk_mask import MaskWatch, masks_held_open
from mmkcr.models.counting import count_parts
from mmkcr.models.sites.qk_mask import QKMaskSite
from mmkcr.models.tasks import find_task, unwrap
from .kernel_analysis import kernel_statistics, split_loader


def kernel_measure(model: nn.Module, config: Config) -> Mapping[str, float]:
    """Kernel complexity of the features of the training set."""
    return kernel_statistics(model, split_loader(config, 'train'))


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
    right: dict[str, list[bool]] = {}
    with preserve_state(model), torch.no_grad():
        for batch in split_loader(config, 'val'):
            for sample in model.test_step(batch):
                kind = '-'.join(sample.question.lower().split()[:2])
                right.setdefault(kind, []).append(sample.pred_answer in sample.gt_answer)
    return {kind: 100 * sum(found) / len(found) for kind, found in right.items()}


def mask_measure(model: nn.Module, config: Config) -> Mapping[str, float]:
    """What the masks of queries and keys do to the test set; nothing without masks.

    Openness and shares of constant channels in percent, means over the masks, and under
    ``<metric>_open`` the metrics of the test with all masks held open.
    """
    if not QKMaskSite.masks(unwrap(model)):
        return {}
    loader = Runner.build_dataloader(config.test_dataloader, seed=0)
    with preserve_state(model), MaskWatch(model) as watch:
        _tested(model, loader, config)
    with preserve_state(model), masks_held_open(model):
        opened = _tested(model, loader, config)
    return {**watch.means(), **{f'{key}_open': float(value) for key, value in opened.items()}}


@torch.no_grad()
def _tested(model: nn.Module, loader: DataLoader, config: Config) -> dict[str, float]:
    """Metrics of a config's test, without a Runner."""
    evaluator = Evaluator(config.test_evaluator)
    evaluator.dataset_meta = loader.dataset.metainfo
    for batch in loader:
        evaluator.process(data_samples=model.test_step(batch), data_batch=batch)
    return evaluator.evaluate(len(loader.dataset))

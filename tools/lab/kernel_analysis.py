"""Kernel complexity of trained classifiers, without a Runner."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

from mmkcr.evaluation.features import (
    feature_layer_of,
    find_pipeline,
    preserve_state,
    share_of_rank,
    with_pipeline,
)
from mmkcr.functional.kernel import DEFAULT_LANDMARKS
from mmkcr.methods.kcr.metric import KernelComplexityMetric
from mmkcr.models.feature_tap import features_on_samples
from mmkcr.visualization import show_progress


def split_loader(config: Config, split: str = 'train') -> DataLoader:
    """A sequential loader of a config's training or validation set, with test transforms.

    Args:
        config (Config): With ``val_dataloader``, and ``train_dataloader`` for 'train'.
        split (str): 'train' or 'val'. Defaults to 'train'.

    Raises:
        ValueError: Another split, or the config has no such loader.
    """
    if split not in ('train', 'val'):
        raise ValueError(f"expected the split 'train' or 'val', found `{split}`")
    for name in {f'{split}_dataloader', 'val_dataloader'}:
        if config.get(name) is None:
            raise ValueError(f'expected a config with `{name}`, found none in '
                             f'`{config.filename}`')
    # batch size, workers and collate function are the validation's for either split
    loader = copy.deepcopy(config.val_dataloader)
    loader.update(sampler=dict(type='DefaultSampler', shuffle=False), drop_last=False)
    loader.pop('batch_sampler', None)
    built = Runner.build_dataloader(loader, seed=0)
    if split == 'val':
        return built
    train = with_pipeline(DATASETS.build(config.train_dataloader.dataset),
                          find_pipeline(built.dataset))
    return share_of_rank(train, None, built, distributed=False)


@torch.no_grad()
def kernel_statistics(model: nn.Module, loader: DataLoader, layer: str | None = None,
                      landmarks: int | None = None, progress: bool = False,
                      **kwargs: Any) -> dict[str, float]:
    """KC, A-KC, TNN and the KCR bounds of a model on a data set, in one pass.

    Args:
        model (BaseModel): A classifier whose data samples have ``pred_score``.
        loader (DataLoader): See :func:`split_loader`.
        layer (str, optional): As in :class:`mmkcr.models.feature_tap.FeatureTap`. Defaults to
            None: :func:`~mmkcr.evaluation.features.feature_layer_of` the model.
        landmarks (int, optional): Expected number of landmarks of A-KC. Defaults to None: a tenth
            of the samples, at most the paper's m = 50000.
        progress (bool): Show a progress bar on stderr. Defaults to False.
        **kwargs: See :class:`mmkcr.KernelComplexityMetric`.

    Raises:
        ValueError: More landmarks than samples, or a head without a linear layer and no ``layer``.
    """
    n = len(loader.dataset)
    if landmarks is not None and not 1 <= landmarks <= n:
        raise ValueError(f'expected from 1 to n = {n} landmarks, found `{landmarks}`')
    kwargs['landmark_ratio'] = min(0.1, DEFAULT_LANDMARKS / n) if landmarks is None else \
        landmarks / n
    layer = feature_layer_of(model) if layer is None else layer
    # as in a validation, but without a Runner
    metric = KernelComplexityMetric(prefix='kernel', **kwargs)
    batches = show_progress(loader, 'Kernel complexity') if progress else loader
    with preserve_state(model), features_on_samples(model, layer):
        for batch in batches:
            samples = model.test_step(batch)
            metric.process(batch, [sample.to_dict() for sample in samples])
    return {key.split('/')[1]: value for key, value in metric.evaluate(n).items()}


@torch.no_grad()
def classification_scores(model: nn.Module, loader: DataLoader) -> dict[str, float]:
    """Loss and accuracy of a classifier on a data set.

    Args:
        model (BaseModel): A classifier whose data samples have ``pred_score``.
        loader (DataLoader): See :func:`split_loader`.

    Returns:
        dict[str, float]: ``loss``, the mean cross entropy in nats, and ``top1`` in percent.
    """
    losses: list[float] = []
    correct = 0
    with preserve_state(model):
        for batch in loader:
            for sample in model.test_step(batch):
                probability = float(sample.pred_score[int(sample.gt_label)])
                losses.append(-math.log(max(probability, 1e-30)))
                correct += int(sample.pred_label) == int(sample.gt_label)
    return dict(loss=sum(losses) / len(losses), top1=100 * correct / len(losses))


def training_steps(metas: Sequence[Mapping[str, Any]]) -> tuple[str, list[int]]:
    """How far the checkpoints of one run were trained.

    A run that counts iterations writes the epoch 0 to all of its checkpoints, and several that are
    saved within one epoch have the same.

    Args:
        metas (Sequence[Mapping]): ``meta`` of every checkpoint.

    Returns:
        tuple[str, list[int]]: ``'epoch'`` or ``'iteration'``, and one number per checkpoint: its
        position, from 1, if some do not say.
    """
    epochs, iterations = ([meta.get(key) for meta in metas] for key in ('epoch', 'iter'))
    apart = all(iterations) and len(set(iterations)) > len(set(epochs))
    if all(epochs) and not apart:
        return 'epoch', list(map(int, epochs))
    if all(iterations):
        return 'iteration', list(map(int, iterations))
    return 'epoch', list(range(1, len(metas) + 1))


def step_of(row: Mapping[str, Any]) -> tuple[str, int]:
    """What the checkpoint of a row was trained for, such as ``('epoch', 30)``."""
    unit = 'epoch' if 'epoch' in row else 'iteration'
    return unit, row[unit]

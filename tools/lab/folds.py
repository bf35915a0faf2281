"""One fold of a cross-validation on a share of a training set: its samples and its config."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from mmengine.config import Config
from torch.utils.data import Dataset

from mmkcr.cli.launch import set_dataloader_defaults
from mmkcr.datasets.part import DatasetPart, class_labels, sample_sources
from mmkcr.engine.compressed_config import with_import
from mmkcr.registry import DATASETS


class Deal(NamedTuple):
    """How the training set is dealt.

    Args:
        fraction (float): Share of the training set. Defaults to 0.1.
        folds (int): Defaults to 5.
        seed (int): Defaults to 0.
    """

    fraction: float = 0.1
    folds: int = 5
    seed: int = 0


def fold_indices(labels: np.ndarray, fraction: float, folds: int, fold: int, seed: int,
                 sources: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the training and of the held-out side of a fold, ascending.

    First a stratified share of the samples is drawn, the same for all folds;
    then this share is divided into stratified folds.

    Args:
        labels (np.ndarray): Label of every sample, (n,).
        fraction (float): Share of the samples, within (0, 1].
        folds (int): Number of folds, at least 2.
        fold (int): The held-out fold, from 0.
        seed (int): Seed of the share and of the folds.
        sources (Sequence[int], optional): See :func:`~mmkcr.datasets.part.sample_sources`: all
            copies of a repeated sample are on one side. Defaults to None: there are no copies.

    Raises:
        ValueError: An argument is out of range, or a class has too few samples.
    """
    from sklearn.model_selection import StratifiedKFold, train_test_split
    if not 0 < fraction <= 1:
        raise ValueError(f'expected a `fraction` of the training set within (0, 1], found '
                         f'{fraction}')
    if folds < 2 or not 0 <= fold < folds:
        raise ValueError(f'expected at least 2 folds and a fold within [0, folds), found fold '
                         f'{fold} of {folds}')
    _, first, sample = np.unique(range(len(labels)) if sources is None else sources,
                                 return_index=True, return_inverse=True)
    labels = labels[first]
    chosen = np.arange(len(labels))
    if fraction < 1:
        try:
            chosen = train_test_split(chosen, train_size=fraction, random_state=seed,
                                      stratify=labels)[0]
        except ValueError as error:
            raise ValueError(f'expected a training set of which a stratified {fraction:.0%} can '
                             f'be drawn, found {len(labels)} samples ({error})') from error
    chosen.sort()
    # scikit-learn only warns, and some held-out side would lack the class
    names, numbers = np.unique(labels, return_inverse=True)
    rarest = np.bincount(numbers[chosen], minlength=len(names)).min(initial=len(labels))
    if rarest < folds:
        raise ValueError(f'expected at least {folds} samples of every class for {folds} folds, '
                         f'found a class with {rarest} in {fraction:.0%} of the training set')
    deal = StratifiedKFold(folds, shuffle=True, random_state=seed)
    sides = list(deal.split(chosen, labels[chosen]))[fold]
    return tuple(np.flatnonzero(np.isin(sample, chosen[side])) for side in sides)


@DATASETS.register_module()
class FoldPart(DatasetPart):
    """The training side, or the held-out side, of one fold.

    Args:
        dataset (dict | Dataset): A classification training set.
        fraction, folds, fold, seed: See :func:`fold_indices`. Defaults to 0.1, 5, 0 and 0.
        held_out (bool): Use the held-out side. Defaults to False.

    Raises:
        TypeError: The data set has no labels to stratify by.
        ValueError: See :func:`fold_indices`.
    """

    def __init__(self, dataset: dict | Dataset, fraction: float = 0.1, folds: int = 5,
                 fold: int = 0, held_out: bool = False, seed: int = 0) -> None:
        dataset = DATASETS.build(dataset) if isinstance(dataset, dict) else dataset
        if hasattr(dataset, 'full_init'):
            dataset.full_init()
        labels = class_labels(dataset)
        parts = fold_indices(labels, fraction, folds, fold, seed, sample_sources(dataset))
        super().__init__(dataset, parts[int(held_out)].tolist())
        self.labels = labels[self.indices]

    def get_gt_labels(self) -> np.ndarray:
        """Labels of the samples of this side, (len(self),)."""
        return self.labels


def fold_config(config: Config, deal: Deal, fold: int, train_size: int) -> Config:
    """The config of one fold.

    Args:
        config (Config): With the values to try.
        deal (Deal): How the training set is dealt.
        fold (int): The fold that is held out.
        train_size (int): Samples on the training side; an explicit number of
            landmarks above what the fold trains on becomes the default.
    """
    config = Config(config._cfg_dict.to_dict())
    config.custom_imports = with_import(config)
    config.custom_imports['imports'].append(__name__)  # of `FoldPart`
    part = dict(type='mmkcr.FoldPart', fold=fold, **deal._asdict())
    train = config.train_dataloader.dataset
    held_out = _with_pipeline(train, _pipeline(config.val_dataloader.dataset))
    config.train_dataloader['dataset'] = dict(part, dataset=train)
    config.val_dataloader['dataset'] = dict(part, dataset=held_out, held_out=True)
    config.test_dataloader = config.test_cfg = config.test_evaluator = None
    loop = config.train_cfg
    loop['val_begin'] = 1
    loop['val_interval'] = loop.get('max_epochs') or loop.get('max_iters')
    config.auto_scale_lr, config.log_level = None, 'ERROR'
    used = int(train_size * (1 - loop.get('architecture_fraction', 0.3))) \
        if 'Bilevel' in str(loop.get('type')) else train_size
    set_dataloader_defaults(config, ('train_dataloader', 'val_dataloader'),
                            pin_memory=True, persistent_workers=True)
    for hook in config.get('custom_hooks') or []:
        if hook.get('landmarks') is not None and hook['landmarks'] > used:
            hook['landmarks'] = None
    return config


def _pipeline(dataset: Mapping) -> Any:
    if 'pipeline' in dataset:
        return dataset['pipeline']
    if isinstance(dataset.get('dataset'), Mapping):
        return _pipeline(dataset['dataset'])
    raise ValueError('expected a validation set with a `pipeline` for the held-out folds, found '
                     f'`{dataset.get("type")}` without')


def _with_pipeline(dataset: Mapping, pipeline: Any) -> dict[str, Any]:
    if 'pipeline' not in dataset and isinstance(dataset.get('dataset'), Mapping):
        return {**dataset, 'dataset': _with_pipeline(dataset['dataset'], pipeline)}
    return {**dataset, 'pipeline': copy.deepcopy(pipeline)}

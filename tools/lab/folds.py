"""One fold of a cross-validation: its config."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from mmengine.config import Config

from mmkcr.cli.launch import set_dataloader_defaults


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

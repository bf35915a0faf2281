"""What the quickstart changes in the configs of the digits."""

from dataclasses import dataclass
from typing import Any

from mmengine.config import Config

from .run_settings import prepare_run


@dataclass(frozen=True)
class QuickstartOptions:
    """What is run.

    Args:
        work_dir (str): Folder for everything that is written.
        configs (str): Folder with this project's configs.
        data_root (str): Digits, as tools/dataset_converters/digits.py writes
            them. Defaults to ``'data/digits'``.
        target_macs (float | str): See :func:`mmkcr.apis.slim`. Defaults to 0.8.
        divisor (int): See :func:`mmkcr.apis.slim`. Defaults to 8.
        epochs_factor (float): Schedules are stretched by it. Defaults to 1.
        train_slice (bool): Train on four fifths of the training digits and
            measure on the last fifth: for choosing hyper-parameters without a
            look at the held-out digits. Defaults to False.
    """

    work_dir: str
    configs: str
    data_root: str = 'data/digits'
    target_macs: Any = 0.8
    divisor: int = 8
    epochs_factor: float = 1.
    train_slice: bool = False


def prepare(config: Config, seed: int, options: QuickstartOptions) -> Config:
    """Put data, seed and length into a config, and have the KC measured on the way.

    Args:
        config (Config): Of configs/kcr/digits; changed in place.
        seed (int): Of everything random.
        options (QuickstartOptions): What is run.

    Returns:
        Config: The same.
    """
    for name in ('train', 'val', 'test'):
        config[f'{name}_dataloader'].dataset.data_root = options.data_root
    accuracy = config.val_evaluator
    config.val_evaluator = config.test_evaluator = [
        accuracy, dict(type='mmkcr.KernelComplexityMetric')]
    prepare_run(config, seed, options.epochs_factor, options.train_slice)
    config.custom_hooks = [*config.get('custom_hooks', []), dict(type='mmkcr.FeatureTapHook')]
    config.train_cfg.val_interval = 2
    return config

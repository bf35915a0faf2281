"""The bilevel search of KCR-Transformer, algorithm 1."""

from collections.abc import Sequence
from typing import Any

from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from mmkcr.engine.resume.batches import PairedBatches, set_epoch
from mmkcr.registry import LOOPS
from .bilevel_steps import BilevelSteps
from .split import build_split_dataloaders


@LOOPS.register_module()
class BilevelTrainLoop(BilevelSteps, EpochBasedTrainLoop):
    """Trains gates and weights in turn, on disjoint parts of the training set.

    KCR-Transformer v2, algorithm 1: the search set is split once. In each
    iteration a batch of one part updates the gates, then a batch of the other
    part updates the weights. An epoch is one pass over the weights' part. The
    architecture's losses are logged with the prefix ``architecture/``.

    Neither step affects the other's gradients, even while gradients are
    accumulated. The model's ``price``, if it has one, is in training mode in the
    gates' step alone, so that a weight that grows does so once an iteration. It
    supports AMP, gradient accumulation and clipping for each, EMA, and distributed
    training, where gates get the mean gradient over ranks.

    Args:
        runner (Runner): The runner; its model offers ``gate_parameters()``,
            its ``optim_wrapper`` has the keys ``weights`` and
            ``architecture``, see :class:`mmkcr.SearchOptimWrapperConstructor`.
        dataloader (dict): Config of the loader; both parts use it.
        max_epochs (int): Epochs.
        architecture_fraction (float): Share of the samples that train the
            gates, within (0, 1). Defaults to 0.3.
        split_seed (int): Seed of the split. Defaults to 0.
        **kwargs: ``val_begin``, ``val_interval``, ``dynamic_intervals``.

    Raises:
        TypeError: ``dataloader`` is not a config.
        ValueError: No gates, other optimizers, a fraction out of (0, 1), or a
            part that is empty or smaller than a batch.

    Examples:
        >>> train_cfg = dict(type='mmkcr.BilevelTrainLoop', max_epochs=200)
    """

    def __init__(self,
                 runner: Runner,
                 dataloader: DataLoader | dict,
                 max_epochs: int,
                 architecture_fraction: float = 0.3,
                 split_seed: int = 0,
                 **kwargs: Any) -> None:
        self._prepare(runner)
        weights_loader, self.architecture_dataloader = build_split_dataloaders(
            runner, dataloader, architecture_fraction, split_seed)
        super().__init__(runner, weights_loader, max_epochs, **kwargs)

    def run_epoch(self) -> None:
        """One pass over the weights' part."""
        self.runner.call_hook('before_train_epoch')
        # hooks that switch transforms make the loader that they know of start new workers
        if self.dataloader.persistent_workers and self.dataloader._iterator is None:
            self.architecture_dataloader._iterator = None
        # the host's sampler hook knows of the other loader only
        set_epoch(self.architecture_dataloader, self._epoch)
        self.runner.model.train()
        # the weights' loader comes first: its end is the end of the epoch
        batches = zip(self.dataloader, self.architecture_dataloader)
        for index, (weights_batch, architecture_batch) in enumerate(batches):
            self.run_iter(index, weights_batch, architecture_batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1


@LOOPS.register_module()
class IterBilevelTrainLoop(BilevelSteps, IterBasedTrainLoop):
    """:class:`BilevelTrainLoop` for iteration-based runs, such as those of mmseg.

    The two parts are separate streams. With an ``InfiniteSampler`` neither
    ends; with a sampler of epochs each restarts in its own next order.

    Args:
        runner (Runner): See :class:`BilevelTrainLoop`.
        dataloader (dict): As there, like all that is not said here.
        max_iters (int): Iterations, each with one batch of either part.
        architecture_fraction (float): Defaults to 0.3.
        split_seed (int): Defaults to 0.
        **kwargs: Also ``fast_forward_on_resume``.

    Examples:
        >>> train_cfg = dict(type='mmkcr.IterBilevelTrainLoop', max_iters=160000)
    """

    def __init__(self,
                 runner: Runner,
                 dataloader: DataLoader | dict,
                 max_iters: int,
                 architecture_fraction: float = 0.3,
                 split_seed: int = 0,
                 **kwargs: Any) -> None:
        self._prepare(runner)
        weights_loader, self.architecture_dataloader = build_split_dataloaders(
            runner, dataloader, architecture_fraction, split_seed, endless=True)
        super().__init__(runner, weights_loader, max_iters, **kwargs)
        self.dataloader_iterator = PairedBatches(self.dataloader, self.architecture_dataloader)

    def run_iter(self, data_batch: tuple[Sequence[dict], Sequence[dict]]) -> None:
        """Update the gates, then the weights, by the batches of their parts."""
        super().run_iter(self._iter, *data_batch)

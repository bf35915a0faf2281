"""Base of the hooks that refresh a regulariser from the training set's features."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from mmengine.dataset import Compose
from mmengine.dist import broadcast
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmkcr.engine.compressed_config import image_size
from mmkcr.evaluation.features import (
    draw_samples,
    find_pipeline,
    plain_pipeline,
    undisturbed,
    with_pipeline,
)
from mmkcr.models.tasks import find_task, is_self_supervised, unwrap
from .schedules import ScheduledHook, find_regularizer


class RefreshedTerm(nn.Module):
    """A regulariser of features (B, d) with a state that a :class:`RefreshHook` computes.

    It is called while it is ``active``, see :class:`mmkcr.WarmupSwitchHook`. It is ``ready`` after
    a refresh or with the state of a checkpoint; the buffer ``refresh_step`` is the step before
    which the state was computed.
    """

    # the state in words, the hook that computes it, a buffer that is 0 without it
    state, hook, marker = '', '', ''

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features, self.active, self.ready = num_features, True, False
        self._logged: dict[str, Tensor] = {}

    def check(self, features: Tensor) -> None:
        """Refuse features of another width, and a forward without a state."""
        name = type(self).__name__
        if features.ndim != 2 or features.shape[1] != self.num_features:
            raise ValueError(f'expected features of shape (B, {self.num_features}), found '
                             f'`{tuple(features.shape)}` in {name}')
        if not self.ready:
            raise RuntimeError(f'expected {self.state}, found none in {name}: add `{self.hook}` '
                               'or call `refresh` before the first batch')

    def log_vars(self) -> dict[str, Tensor]:
        """Values of the last batch for the log, on the features' device."""
        return self._logged

    def _load_from_state_dict(self, *args, **kwargs) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        # read once here: no device wait in every forward
        self.ready = bool(getattr(self, self.marker) > 0)


class RefreshHook(ScheduledHook):
    """Computes the state of a :class:`RefreshedTerm` from the training set before some steps.

    The model runs in eval mode with the test transforms. Each rank does its share, and all
    hold the same state afterwards. The state consists of buffers and
    records its step, so a run resumed within an epoch keeps the state that the epoch
    began with. The modules' modes and the random states are left as they were.

    Note:
        With :class:`mmengine.hooks.EMAHook` the features are those of the online
        weights, because the loss is computed on these.

    Args:
        interval (int): Steps between refreshes.
        loss (str): Name in ``RegularizedModel.regularizers``.
        dataloader (dict | DataLoader, optional): The samples. Defaults to None: the
            training set with the transforms of the validation set. Without a validation set, in
            self-supervised training, images are resized and cropped in the centre
            (:func:`~mmkcr.evaluation.features.plain_pipeline`).
        seed (int): Seed of the draws. Defaults to 0.
        by_epoch (bool): Whether steps are epochs. Defaults to True.
        pipeline (Sequence[dict], optional): Transforms for the training set's samples instead
            of those of the validation set. Defaults to None.

    Raises:
        ValueError: ``interval`` is below 1, or ``dataloader`` and ``pipeline`` are given.
    """

    priority = 'NORMAL'

    def __init__(self, interval: int, loss: str, dataloader: dict | DataLoader | None = None,
                 seed: int = 0, by_epoch: bool = True,
                 pipeline: Sequence[dict] | None = None) -> None:
        super().__init__(by_epoch)
        if dataloader is not None and pipeline is not None:
            raise ValueError('expected `dataloader` (all of the samples) or `pipeline` (their '
                             f'transforms) of {type(self).__name__}, found both')
        if interval < 1:
            raise ValueError(f'expected interval >= 1, found `{interval}` in '
                             f'{type(self).__name__}')
        self.interval, self.loss = interval, loss
        self.dataloader, self.pipeline, self.seed = dataloader, pipeline, seed

    @abstractmethod
    def check(self, loss: RefreshedTerm) -> None:
        """Refuse bad settings before any work; ``self.dataset`` is already set."""

    @abstractmethod
    def due(self, loss: RefreshedTerm, step: int) -> bool:
        """Whether the state is to be computed before a step (from 0)."""

    @abstractmethod
    def compute(self, runner: Runner, loss: RefreshedTerm, step: int) -> str:
        """Compute the state before a step (from 0), from the model in eval mode.

        Returns:
            str: A description of what was computed, for the log.
        """

    def before_train(self, runner: Runner) -> None:
        """Find the loss and the samples, and refuse bad settings before any work."""
        super().before_train(runner)
        loss = find_regularizer(runner.model, self.loss)
        self.dataset, self.like = self._samples(runner)
        self.check(loss)
        if runner.iter == 0:  # state loaded from another run has no step of this one
            loss.refresh_step.fill_(-1)

    def before_step(self, runner: Runner, step: int) -> None:
        """Refresh if this step is due."""
        loss = find_regularizer(runner.model, self.loss)
        # a run that resumes within this step has its state from the checkpoint
        if self.due(loss, step) and not (loss.ready and int(loss.refresh_step) == step):
            self.refresh(runner)

    def refresh(self, runner: Runner) -> None:
        """Compute the state from the current model."""
        model, step = unwrap(runner.model), self.step_of(runner)
        loss = find_regularizer(model, self.loss)
        with undisturbed(model):
            text = self.compute(runner, loss, step)
        for buffer in loss.buffers():
            broadcast(buffer)
        runner.logger.info(f'{type(self).__name__}: {text} before {self.unit} {step + 1}')

    def draw(self, number: int, step: int) -> Tensor | None:
        """Draw samples for a step without replacement, ascending; None for all."""
        return draw_samples(len(self.dataset), number, self.seed * 1000003 + step)

    def _samples(self, runner: Runner) -> tuple[Any, DataLoader]:
        """The data set with test transforms, and the loader whose settings are used."""
        if self.dataloader is not None:
            loader = runner.build_dataloader(self.dataloader) if isinstance(
                self.dataloader, dict) else self.dataloader
            return loader.dataset, loader
        train = runner.train_dataloader
        if self.pipeline is not None:
            pipeline = Compose(self.pipeline)
        elif runner.val_loop is not None:
            pipeline = find_pipeline(runner.val_loop.dataloader.dataset)
        elif is_self_supervised(find_task(runner.model)):
            size = image_size(runner.cfg)
            pipeline = plain_pipeline(find_pipeline(train.dataset), size[1:])
        else:
            raise ValueError('expected a val_dataloader (its test transforms are used) or '
                             f'`pipeline=` of {type(self).__name__}, found neither')
        return with_pipeline(train.dataset, pipeline), train

"""Terms whose state comes from the features of the training set, and features for metrics."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from mmengine.dataset import Compose
from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from mmkcr.engine.compressed_config import image_size
from mmkcr.evaluation.features import (
    draw_samples,
    feature_layer_of,
    find_pipeline,
    plain_pipeline,
    preserve_state,
    with_pipeline,
)
from mmkcr.models.feature_tap import features_on_samples
from mmkcr.models.tasks import find_task, is_self_supervised, unwrap
from mmkcr.registry import HOOKS
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

    def check_shape(self, what: str, value: Tensor, *shape: int) -> None:
        """Refuse a tensor of another shape, which might broadcast."""
        if value.shape != shape:
            raise ValueError(f'expected {what} of shape {shape}, found `{tuple(value.shape)}` in '
                             f'{type(self).__name__}')

    def check_ready(self, features: Tensor) -> None:
        """Refuse features that are not (B, d), and a forward without a state."""
        self.check_shape('features', features, *features.shape[:1], self.num_features)
        if not self.ready:
            raise RuntimeError(f'expected {self.state}, found none in {type(self).__name__}: add '
                               f'`{self.hook}` or call `refresh` before the first batch')

    def log_vars(self) -> dict[str, Tensor]:
        """Values of the last batch for the log, on the features' device."""
        return self._logged

    def _load_from_state_dict(self, *args, **kwargs) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        # read once here: no device wait in every forward
        self.ready = bool(getattr(self, self.marker) > 0)


class RefreshHook(ScheduledHook):
    """Computes the state of a :class:`RefreshedTerm` from the training set before some steps.

    The model runs in eval mode with the test transforms; its modes and the random states are left
    as they were. Each rank does its share, and all hold the same state afterwards, in buffers. It
    records its step, so a run resumed within an epoch keeps the state that the epoch began with.

    A subclass has three methods: ``check(loss)`` refuses bad settings before any work, with
    ``self.dataset`` set; ``due(loss, step)`` says whether the state is to be computed before a step
    (from 0); ``compute(runner, loss, step)`` does so and describes it for the log.

    With :class:`mmengine.hooks.EMAHook` the features are those of the online weights, as the loss's
    are.

    Args:
        interval (int): Steps between refreshes.
        loss (str): Name in ``RegularizedModel.regularizers``.
        seed (int): Seed of the draws. Defaults to 0.
        by_epoch (bool): See :class:`ScheduledHook`. Defaults to True.
        pipeline (Sequence[dict], optional): Transforms of the training set's samples. Defaults to
            None: those of the validation set. Without one, in self-supervised training, images are
            resized and cropped in the centre (:func:`~mmkcr.evaluation.features.plain_pipeline`).
    """

    priority = 'NORMAL'

    def __init__(self, interval: int, loss: str, seed: int = 0, by_epoch: bool = True,
                 pipeline: Sequence[dict] | None = None) -> None:
        super().__init__(by_epoch)
        if interval < 1:
            raise ValueError(f'expected interval >= 1, found `{interval}` in '
                             f'{type(self).__name__}')
        self.interval, self.loss, self.seed, self.pipeline = interval, loss, seed, pipeline

    def before_train(self, runner: Runner) -> None:
        """Find the loss and the samples, and refuse bad settings before any work."""
        super().before_train(runner)
        loss = find_regularizer(runner.model, self.loss)
        self.like = runner.train_dataloader  # its settings are used
        self.dataset = with_pipeline(self.like.dataset, self._transforms(runner))
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
        step, loss = self.step_of(runner), find_regularizer(runner.model, self.loss)
        with preserve_state(unwrap(runner.model)):
            text = self.compute(runner, loss, step)
        for buffer in loss.buffers():
            broadcast(buffer)
        runner.logger.info(f'{type(self).__name__}: {text} before {self.unit} {step + 1}')

    def draw(self, number: int, step: int) -> Tensor | None:
        """Draw samples for a step without replacement, ascending; None for all."""
        return draw_samples(len(self.dataset), number, self.seed * 1000003 + step)

    def _transforms(self, runner: Runner) -> Any:
        """Test transforms for the samples."""
        if self.pipeline is not None:
            return Compose(self.pipeline)
        if runner.val_loop is not None:
            return find_pipeline(runner.val_loop.dataloader.dataset)
        if is_self_supervised(find_task(runner.model)):
            return plain_pipeline(find_pipeline(self.like.dataset), image_size(runner.cfg)[1:])
        raise ValueError('expected a val_dataloader (its test transforms are used) or `pipeline=` '
                         f'of {type(self).__name__}, found neither')


@HOOKS.register_module()
class FeatureTapHook(Hook):
    """Attaches a layer's features to the predicted data samples during val and test.

    Works for any model whose 'predict' mode returns one data sample per image. Its forward hooks
    exist only during a val or test loop.

    Args:
        layer (str, optional): See :class:`mmkcr.models.feature_tap.FeatureTap`. Defaults to None:
            that of the model, see :func:`mmkcr.evaluation.features.feature_layer_of`.
        key (str): Field of the data samples that receives the vector (d,). A second hook with
            ``layer='head.fc', key='logits'`` passes on logits. Defaults to 'features'.
    """

    priority = 'NORMAL'

    def __init__(self, layer: str | None = None, key: str = 'features') -> None:
        self.layer, self.key = layer, key
        self._taps = ExitStack()

    def before_val_epoch(self, runner) -> None:
        """Register the forward hooks."""
        self._taps.close()
        layer = feature_layer_of(runner.model) if self.layer is None else self.layer
        self._taps.enter_context(features_on_samples(runner.model, layer, self.key))

    def after_val_epoch(self, runner, metrics=None) -> None:
        """Remove the forward hooks."""
        self._taps.close()

    before_test_epoch, after_test_epoch = before_val_epoch, after_val_epoch


def tapped_feature(sample: Mapping, key: str) -> Tensor:
    """The vector (d,) that :class:`FeatureTapHook` attached to a data sample, for a metric."""
    if key not in sample:
        raise ValueError(f'expected the field `{key}` in the data samples, found {sorted(sample)}: '
                         'add `FeatureTapHook` to custom_hooks')
    return sample[key].detach()

"""Knowledge distillation from a frozen classifier."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch import Tensor, nn

from mmkcr.models.building import HOSTS, build_model, load_weights, read_config
from mmkcr.models.tasks import kept_randomness
from mmkcr.registry import MODELS


class Teacher:
    """A frozen network that is no sub-module of its holder, and that copies of the holder share.

    It is built and loaded on first use, which changes neither random states nor default scope.

    Args:
        config (str | dict): Config file (also ``library::path``), or the ``model`` of a config
            with its ``data_preprocessor``, whose types are those of the run's default scope.
        checkpoint (str, optional): File or URL. None only for a model that has no weights to load.
    """

    def __init__(self, config: str | Mapping[str, Any], checkpoint: str | None) -> None:
        self.config, self.checkpoint = config, checkpoint
        self._model: nn.Module | None = None

    def __deepcopy__(self, memo: dict) -> 'Teacher':
        return self

    def model(self, device: torch.device) -> nn.Module:
        """The network in eval mode, without gradients, on a device."""
        if self._model is None:
            self._model = self._build()
        self._model.train(False)
        return self._model.to(device)

    def _build(self) -> nn.Module:
        scope = DefaultScope.get_current_instance()
        config = read_config(self.config) if isinstance(self.config, str) else Config(dict(
            model=dict(self.config),
            # of a run that names no library, it is a classifier
            default_scope=scope.scope_name if scope and scope.scope_name in HOSTS else
            'mmpretrain'))
        if config.get('compression') is not None:
            raise ValueError('expected the config of a network as it is for a teacher, found '
                             f'`{self.config}` with `compression`')
        # in the first forward of the student: a resumed run builds it at another iteration
        with kept_randomness(), DefaultScope.overwrite_default_scope(
                config.get('default_scope', 'mmengine')):
            model = build_model(config).requires_grad_(False)
            if self.checkpoint is not None:
                load_weights(model, self.checkpoint)
        return model


@MODELS.register_module()
class DistillationLoss(nn.Module):
    r"""Distillation of any mmpretrain classifier into the trained one (DCS, appendix C).

    .. math:: w\, T^2\, \mathrm{KL}(\operatorname{softmax}(z^t / T) \,\|\,
              \operatorname{softmax}(z^s / T))

    It is a regulariser of :class:`mmkcr.RegularizedModel`: it is added to the loss on the labels
    and can be combined with other regularisers. The teacher sees the student's images through its
    own data preprocessor. This includes mixed images: mixing commutes with the normalisation,
    which is affine, so the student's normalisation can be undone. The paper names the teacher,
    EfficientNet-B5, but neither T nor w.

    Args:
        teacher (str | dict): See :class:`Teacher`.
        checkpoint (str, optional): See :class:`Teacher`. Defaults to None.
        temperature (float): T. Defaults to 1.
        weight (float): w. Defaults to 1.
        input_size (int, optional): Side that images are resized to for the teacher. Defaults to
            None: as they are.

    Attributes:
        active (bool): Whether the term is on; :class:`mmkcr.WarmupSwitchHook` sets it.

    Raises:
        ValueError: ``temperature`` is not positive, or ``weight`` is negative.
    """

    feature_layer = 'head'  # whose output the wrapper passes: the student's logits
    needs_inputs = True

    def __init__(self, teacher: str | Mapping[str, Any], checkpoint: str | None = None,
                 temperature: float = 1., weight: float = 1.,
                 input_size: int | None = None) -> None:
        super().__init__()
        if temperature <= 0 or weight < 0:
            raise ValueError('expected a positive `temperature` and a non-negative `weight`, found '
                             f'{temperature} and {weight} in DistillationLoss')
        self.teacher = Teacher(teacher, checkpoint)
        self.temperature, self.weight, self.input_size = temperature, weight, input_size
        self.active = True
        self._scale, self._to_rgb = [None, None], False
        self._agreement: Tensor | None = None

    def bind(self, student: nn.Module) -> None:
        """Note how the student's images are normalised; the wrapper calls it."""
        preprocessor = student.data_preprocessor
        self._scale = [getattr(preprocessor, name, None) for name in ('mean', 'std')]
        self._to_rgb = bool(getattr(preprocessor, 'to_rgb', False))

    def forward(self, logits: Tensor, inputs: Tensor) -> Tensor:
        """The weighted loss of a batch, a scalar in fp32 or fp64.

        Args:
            logits (Tensor): The student's logits (B, C), with gradient.
            inputs (Tensor): The student's inputs (B, 3, H, W), normalised.

        Raises:
            ValueError: Student and teacher have different numbers of classes.
        """
        target = self.teacher_logits(inputs)
        if target.shape != logits.shape:
            raise ValueError(f'expected a teacher of {logits.shape[1]} classes, found '
                             f'`{target.shape[1]}` in DistillationLoss')
        with torch.autocast(logits.device.type, enabled=False):
            logits = logits if logits.dtype == torch.float64 else logits.float()
            target = target.to(logits)
            self._agreement = (target.argmax(1) == logits.argmax(1)).float().mean()
            divergence = F.kl_div((logits / self.temperature).log_softmax(1),
                                  (target / self.temperature).log_softmax(1),
                                  reduction='batchmean', log_target=True)
        # T^2: the gradients of softened logits scale with 1 / T^2
        return self.weight * self.temperature**2 * divergence

    @torch.no_grad()
    def teacher_logits(self, inputs: Tensor) -> Tensor:
        """The teacher's logits (B, C) for the student's inputs."""
        teacher = self.teacher.model(inputs.device)
        data = teacher.data_preprocessor(dict(inputs=self.pixels(inputs)), False)
        return teacher(data['inputs'], mode='tensor')

    def pixels(self, inputs: Tensor) -> Tensor:
        """The student's inputs as images were loaded (BGR, 0 to 255), at the teacher's size."""
        mean, std = self._scale
        # the preprocessor's steps, undone in reverse: normalisation, then the channel order
        if mean is not None:
            inputs = inputs * std.to(inputs) + mean.to(inputs)
        if self._to_rgb:
            inputs = inputs.flip(1)
        if self.input_size is not None:
            inputs = F.interpolate(inputs, (self.input_size, ) * 2, mode='bicubic',
                                   antialias=True)
        return inputs

    def log_vars(self) -> dict[str, Tensor]:
        """Share of the last batch on which both predict the same class."""
        return {} if self._agreement is None else dict(agreement=self._agreement)

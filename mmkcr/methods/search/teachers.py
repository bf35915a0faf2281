"""Terms by which a frozen network teaches a smaller one."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.dist import all_reduce
from mmengine.registry import DefaultScope
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mmkcr.core.forward import flat_tensors
from mmkcr.engine.build import HOSTS, build_model, load_weights, read_config
from mmkcr.models.tasks import find_task, keep_randomness
from mmkcr.registry import MODELS


class Teacher:
    """A frozen network that is no sub-module of its holder, and that copies of the holder share.

    It is built and loaded on first use, which changes neither random states nor default scope.

    Args:
        config (str | dict): Config file (also ``library::path``), or the ``model`` of a config
            with its ``data_preprocessor``, whose types are in the run's default scope.
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
        with keep_randomness(), DefaultScope.overwrite_default_scope(
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

    It is a regulariser of :class:`mmkcr.RegularizedModel`, beside the loss on the labels. The
    teacher sees the student's images, mixed ones too, through its own data preprocessor: mixing
    commutes with the student's normalisation, which is undone. The paper names the teacher,
    EfficientNet-B5, but neither T nor w.

    Args:
        teacher, checkpoint: See :class:`Teacher`. ``checkpoint`` defaults to None.
        temperature (float): T. Defaults to 1.
        weight (float): w. Defaults to 1.
        input_size (int, optional): Side that images are resized to for the teacher. Defaults to
            None: as they are.

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
        self._preprocessor: list[nn.Module] = []  # a list, so that it is not a sub-module
        self._agreement: Tensor | None = None

    def bind(self, student: nn.Module) -> None:
        """Note how the student's images are normalised; the wrapper calls it."""
        self._preprocessor = [student.data_preprocessor]

    def forward(self, logits: Tensor, inputs: Tensor) -> Tensor:
        """The weighted loss of the student's logits (B, C) and normalised inputs (B, 3, H, W).

        It is a scalar in fp32 or fp64.
        """
        with torch.no_grad():
            teacher = self.teacher.model(inputs.device)
            data = teacher.data_preprocessor(dict(inputs=self.pixels(inputs)), False)
            target = teacher(data['inputs'], mode='tensor')  # (B, C)
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

    def pixels(self, inputs: Tensor) -> Tensor:
        """The student's inputs as images were loaded (BGR, 0 to 255), at the teacher's size."""
        preprocessor, = self._preprocessor
        # its steps, undone in reverse: normalisation, then the channel order
        if getattr(preprocessor, 'mean', None) is not None:
            inputs = inputs * preprocessor.std.to(inputs) + preprocessor.mean.to(inputs)
        if getattr(preprocessor, 'to_rgb', False):
            inputs = inputs.flip(1)
        if self.input_size is not None:
            inputs = F.interpolate(inputs, (self.input_size, ) * 2, mode='bicubic',
                                   antialias=True)
        return inputs

    def log_vars(self) -> dict[str, Tensor]:
        """Share of the last batch on which both predict the same class."""
        return {} if self._agreement is None else dict(agreement=self._agreement)


@MODELS.register_module()
class FeatureDistillationLoss(nn.Module):
    r"""Relative squared distance between the outputs of a backbone and of its teacher.

    .. math:: w \, \frac{1}{L} \sum_l \frac{\|f^s_l - f^t_l\|^2}{\|f^t_l\|^2}

    It is a regulariser of :class:`mmkcr.RegularizedModel` for any task: it needs neither labels
    nor a head. The teacher is the dense network of the same config, so both see the same images
    and their L outputs have the same shapes.

    Args:
        teacher, checkpoint: See :class:`Teacher`. ``checkpoint`` defaults to None.
        weight (float): w. Defaults to 1.

    Raises:
        ValueError: ``weight`` is negative.
    """

    feature_layer = 'backbone'
    needs_inputs = True

    def __init__(self, teacher: str | Mapping[str, Any], checkpoint: str | None = None,
                 weight: float = 1.) -> None:
        super().__init__()
        if weight < 0:
            raise ValueError('expected a non-negative `weight` in FeatureDistillationLoss, found '
                             f'{weight}')
        self.teacher, self.weight, self.active = Teacher(teacher, checkpoint), weight, True
        self._student: list[nn.Module] = []  # a list, so that it is not a sub-module
        self._maps: list[Tensor] = []

    def bind(self, student: nn.Module) -> None:
        """Note the student's backbone; the wrapper calls it."""
        self._student = [find_task(student).backbone]

    def watch(self) -> RemovableHandle:
        """Record the outputs of the student's backbone until the returned handle is removed."""
        def keep(_: nn.Module, __: tuple, out: Any) -> None:
            self._maps = flat_tensors(out)

        return self._student[0].register_forward_hook(keep)

    def forward(self, _: Tensor, inputs: Tensor) -> Tensor:
        """The weighted loss of the student's normalised inputs (B, 3, H, W), in fp32 or fp64."""
        maps, self._maps = self._maps, []  # emptied, so that no graph outlives its step
        with torch.no_grad():
            wanted = flat_tensors(self.teacher.model(inputs.device).backbone(inputs))
        shapes = [[tuple(out.shape) for out in outputs] for outputs in (wanted, maps)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"expected maps of the teacher's shapes {shapes[0]} from the "
                             f"student's backbone, found {shapes[1]}")
        sums = []
        for out, target in zip(maps, wanted):
            # at least fp32: sums of squares overflow in half precision
            target = target.to(torch.promote_types(target.dtype, torch.float32))
            sums.append(torch.stack([(out.to(target) - target).square().sum(),
                                     target.square().sum()]))
        # a ratio of sums over the images of all processes, not a mean of ratios
        distances, energies = mean_over_processes(torch.stack(sums)).unbind(1)
        return self.weight * (distances / energies.clamp(min=1e-12)).mean()


def mean_over_processes(value: Tensor) -> Tensor:
    """The mean of a value over processes, with the gradient through this process's part.

    For losses that are no means over images, such as ratios of sums: a function of it has the same
    value on all processes, and the mean of its gradients over them, which is what a training takes,
    is the gradient of one process with all of the batch.
    """
    mean = value.detach().clone()
    all_reduce(mean, 'mean')
    return mean + (value - value.detach())

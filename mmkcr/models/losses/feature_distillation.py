"""Distillation of a backbone's feature maps from the network that it was made from."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mmkcr.core.forward import flat_tensors
from mmkcr.models.tasks import find_task
from mmkcr.registry import MODELS
from .distillation import Teacher
from .processes import mean_over_processes


@MODELS.register_module()
class FeatureDistillationLoss(nn.Module):
    r"""Relative squared distance between the outputs of a backbone and those of its teacher.

    .. math:: w \, \frac{1}{L} \sum_l \frac{\|f^s_l - f^t_l\|^2}{\|f^t_l\|^2}

    It is a regulariser of :class:`mmkcr.RegularizedModel` for any task: it needs neither labels
    nor a head. The teacher is the dense network of the same config, so both see the same images
    and their L outputs have the same shapes.

    Args:
        teacher (str | dict): See :class:`~mmkcr.models.losses.distillation.Teacher`.
        checkpoint (str, optional): See there. Defaults to None.
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
        """Record the outputs of the student's backbone within a block ``with`` what this gives."""
        def keep(_: nn.Module, __: tuple, out: Any) -> None:
            self._maps = flat_tensors(out)

        return self._student[0].register_forward_hook(keep)

    def forward(self, _: Tensor, inputs: Tensor) -> Tensor:
        """The weighted loss of the student's normalised inputs (B, 3, H, W), in fp32 or fp64.

        Raises:
            ValueError: The outputs of student and teacher differ in shape.
        """
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

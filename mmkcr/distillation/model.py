"""The networks of a distillation, and how far apart their outputs are."""

import copy
import re
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.device import get_device
from mmengine.model import BaseModel
from torch import Tensor, nn

from mmkcr.closed_form.options import Forward
from mmkcr.closed_form.replay import map_tensors
from mmkcr.core.forward import flat_tensors
from .options import DistilOptions


class DistilModel(BaseModel):
    """A student with the average of its weights, and its teacher, whose weights are not saved.

    All are copies, in the mode ``eval``: nothing is dropped, and batch norms keep their statistics.
    ``held_out`` are batches of held-out images.
    """

    def __init__(self, student: nn.Module, teacher: nn.Module, forward: Forward,
                 settings: DistilOptions, logits: bool, held_out: Sequence[Any]) -> None:
        super().__init__()
        self.student = copy.deepcopy(student).requires_grad_(True)
        self.average = copy.deepcopy(student).requires_grad_(False)
        self._teacher = [copy.deepcopy(teacher).requires_grad_(False).to(get_device())]
        for network in (self.student, self.average, *self._teacher):
            network.eval()  # that of mmpretrain's backbones returns None
        self.to(get_device())
        self._run, self._settings = forward, settings
        self._logits, self._held_out = logits, held_out
        self._between = common_blocks(self.student, teacher, settings.between)
        with torch.no_grad():  # of all outputs of the teacher, on at most four batches
            outputs = [self._outputs(self._teacher[0], self.data_preprocessor(batch))
                       for batch in held_out[:4]]
        self._variances = [sum(out.float().var() for out in outs).clamp(min=1e-12) / len(outs)
                           for outs in zip(*outputs)]

    def train(self, mode: bool = True) -> 'DistilModel':
        """Set the mode of this wrapper alone."""
        self.training = mode
        return self

    def init_weights(self) -> None:
        """Leave all as it is: MMEngine's runner would have the networks draw new weights."""

    @torch.no_grad()
    def measure_distance(self) -> float:
        """Mean distance of the averaged student's outputs to the teacher's, on held-out images."""
        losses = [float(sum(self(self.data_preprocessor(batch), mode='compare').values()))
                  for batch in self._held_out]
        return sum(losses) / len(losses)

    def _outputs(self, network: nn.Module, batch: Any) -> list[Tensor]:
        """Outputs of some blocks, where gradients stop, then those that are to agree."""
        caught: dict[str, list[Tensor]] = {}

        def catch(path: str, out: Any) -> Any:
            caught[path] = flat_tensors(out)[:1]
            return map_tensors(out, Tensor.detach)

        with ExitStack() as stack:
            for path in self._between:
                stack.enter_context(network.get_submodule(path).register_forward_hook(
                    lambda _, __, out, path=path: catch(path, out)))
            outputs = flat_tensors(self._run(network, batch))
        return [tensor for path in self._between for tensor in caught.get(path, [])] + outputs

    def forward(self, batch: Any, mode: str = 'loss') -> dict[str, Tensor]:
        """Losses of the student on a batch; in the mode ``'compare'`` of the average."""
        with torch.no_grad():
            wanted = self._outputs(self._teacher[0], batch)
        outputs = self._outputs(self.average if mode == 'compare' else self.student, batch)
        if [one.shape for one in outputs] != [one.shape for one in wanted]:
            raise ValueError('expected a student with outputs of the shapes of its teacher '
                             f'{[tuple(one.shape) for one in wanted]}, found '
                             f'{[tuple(one.shape) for one in outputs]}')
        losses = {}
        if self._logits and mode == 'loss':
            tau = self._settings.temperature
            scores, right = ((one.pop().float() / tau).log_softmax(-1) for one in (outputs, wanted))
            losses['loss_scores'] = tau**2 * F.kl_div(scores, right, reduction='batchmean',
                                                      log_target=True)
        terms = [(one.float() - other.float()).square().mean() / variance
                 for one, other, variance in zip(outputs, wanted, self._variances)]
        if mode == 'compare':  # what the task reads, and nothing else
            terms = terms[min(len(self._between), len(terms) - 1):]
        if terms:
            losses['loss_features'] = torch.stack(terms).mean()
        return losses


def common_blocks(student: nn.Module, teacher: nn.Module, count: int) -> list[str]:
    """Paths of at most ``count`` evenly spaced blocks of both networks, without the last one.

    A block is the first numbered module on the path of a weight that was cut.
    """
    shapes = {name: value.shape for name, value in teacher.named_parameters()}
    cut = [name for name, value in student.named_parameters() if shapes.get(name) != value.shape]
    blocks = list(dict.fromkeys(match[0] for match in (
        re.match(r'(?:[^.]+\.)*?\d+(?=\.)', name) for name in cut) if match))[:-1]
    modules = dict(teacher.named_modules())
    both = [path for path in blocks if path in modules]
    count = min(count, len(both))
    return [both[(2 * i + 1) * len(both) // (2 * count)] for i in range(count)]
